#!/usr/bin/env python
"""
Kill a small training run at random moments, and resume it with the same command each time.

The final checkpoint must equal the checkpoint of a run that was not killed:

    python benchmarks/kill_and_resume.py --kills 30 --processes 2

Every fourth kill is a SIGTERM, which must not lose any iteration; the others are SIGKILLs. Both
signals go to all processes.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "datasets")]

from generate_scenes import generate_scenes  # noqa: E402
from support.interrupted_runs import STATEFUL, assert_same, saved  # noqa: E402
from support.tiny_runs import SEMANTIC_CONFIG  # noqa: E402

SAVING = ["SEED", "1", "SOLVER.CHECKPOINT_PERIOD", "3", "SOLVER.CHECKPOINTS_TO_KEEP", "2"]


def start(data: Path, folder: Path, processes: int, iterations: int) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launcher if processes > 1 else ()), str(ROOT / "train_net.py")]
    command += ["--config-file", str(SEMANTIC_CONFIG), "--resume", "auto"]
    command += [*map(str, STATEFUL), *SAVING, "SOLVER.MAX_ITER", str(iterations)]
    command += ["OUTPUT_DIR", str(folder)]
    env = {**os.environ, "DETECTRON2_DATASETS": str(data), "CUDA_VISIBLE_DEVICES": ""}
    with open(folder / "stdout.txt", "a") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def kill_and_resume(work: Path, kills: int, processes: int, iterations: int) -> None:
    generate_scenes(work / "tiny", num_train=12, num_val=2, size=64, seed=2)
    assert not start(work, work / "alone", processes, iterations).wait()
    folder, number = work / "killed", 0
    while True:
        training = start(work, folder, processes, iterations)
        before = checkpoints(folder)
        while training.poll() is None and (number >= kills or checkpoints(folder) == before):
            time.sleep(0.05)
        time.sleep(random.uniform(0, 0.3))
        if training.poll() is None:
            number += 1
            kind = signal.SIGTERM if number % 4 == 0 else signal.SIGKILL
            os.killpg(training.pid, kind)
            status = training.wait()
            print(f"kill {number}: {kind.name}, {status}; {checkpoints(folder)}", flush=True)
            continue
        assert not training.wait(), (folder / "stdout.txt").read_text()[-3000:]
        assert_same(saved(folder), saved(work / "alone"))
        print(f"It ended as the one without kills after {number} of them", flush=True)
        if number >= kills:
            return
        folder = work / f"killed_{number}"


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*model_*"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        kill_and_resume(Path(temporary), options.kills, options.processes, options.iterations)
