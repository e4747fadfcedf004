#!/usr/bin/env python
"""
Kill a small training again and again, resume it by one command, and compare what it becomes with
one that was left alone:

    python tests/support/kill_and_resume.py --kills 30 --processes 2

Kills come at random moments, many of them while a checkpoint is written, which is slowed down here.
Most are SIGKILL to all processes; some to one of them, and some SIGTERM, which must lose nothing.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from detectron2.config import CfgNode

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "datasets")]  # a script's folder is there instead

from generate_scenes import generate_scenes  # noqa: E402
from ocr_panoptic.checkpoint import SafeCheckpointer, checkpointer  # noqa: E402
from ocr_panoptic.engine import Trainer, launch, run_program  # noqa: E402
from train_net import argument_parser, main  # noqa: E402

PERIOD = 3
LOST = 2 * PERIOD  # iterations at most: a checkpoint is written in those of one period, not more
SETTINGS = [
    *("MODEL.TIMM.NAME", "test_resnet", "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "16"),
    *("MODEL.OCR.CHANNELS", "16", "MODEL.OCR.KEY_CHANNELS", "8", "MODEL.OCR.DROPOUT", "0.5"),
    *("INPUT.CROP.SIZE", "[32, 32]"),
    *("DATALOADER.ASPECT_RATIO_GROUPING", "True"),
    *("DATASETS.TRAIN", "('killed_sem_train',)", "DATASETS.TEST", "()"),
    *("SOLVER.IMS_PER_BATCH", "4", "SOLVER.ACCUMULATION_STEPS", "2"),
    *("SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", "0.001", "SOLVER.LAYER_DECAY", "0.8"),
    *("MODEL.EMA.ENABLED", "True", "MODEL.EMA.DECAY", "0.8"),
    *("SOLVER.CHECKPOINT_PERIOD", str(PERIOD), "SOLVER.CHECKPOINTS_TO_KEEP", "2"),
    *("MODEL.DEVICE", "cpu", "SEED", "1"),
]


def make_data(root: Path) -> None:
    """Labelled scenes, every other one higher than wide."""
    from PIL import Image

    generate_scenes(root / "killed", num_train=12, num_val=2, size=64, seed=2)
    raw = root / "killed/raw"
    for path in sorted([*raw.glob("*/images/*"), *raw.glob("*/semantic/*")]):
        if int(re.sub(r"\D", "", path.stem)) % 2:
            with Image.open(path) as picture:
                picture.crop((0, 0, 48, 64)).save(path)


def slow_main(args: argparse.Namespace, cfg: CfgNode | None) -> None:
    """train_net.py's, that says in a file what it does, and writes checkpoints slowly."""
    events = open(Path(args.opts[-1]) / "events.jsonl", "a", buffering=1)  # noqa: SIM115

    def say(**event: object) -> None:
        events.write(json.dumps({"pid": os.getpid(), **event}) + "\n")

    run_step, save, write = Trainer.run_step, torch.save, SafeCheckpointer._write

    def step_and_say(trainer: Trainer) -> None:
        say(start=trainer.iter)
        run_step(trainer)
        say(completed=trainer.iter + 1)

    def write_and_say(checkpointer: SafeCheckpointer, path: Path, data: dict, *how: object) -> None:
        say(writes=data["iteration"] + 1)
        write(checkpointer, path, data, *how)
        say(written=data["iteration"] + 1)

    def save_slowly(data: object, path: Path) -> None:
        save(data, path)
        content = path.read_bytes()
        with open(path, "wb", buffering=0) as file:
            for i in range(8):
                file.write(content[len(content) * i // 8 : len(content) * (i + 1) // 8])
                time.sleep(0.06)

    Trainer.run_step, checkpointer.torch.save = step_and_say, save_slowly
    SafeCheckpointer._write = write_and_say
    main(args, cfg)


class Training:
    """A training, begun or resumed in processes of its own."""

    def __init__(self, data: Path, folder: Path, processes: int, iterations: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.events_file = folder / "events.jsonl"
        self.events_file.write_text("")
        config = ROOT / "configs/quick_schedules/semantic_ocr_R_18_scenes.yaml"
        command = [sys.executable, __file__, "--child", "--config-file", str(config)]
        command += ["--resume", "auto", "--deterministic", "--dist-url", "auto"]
        command += ["--num-gpus", str(processes), *SETTINGS]
        # Loaders of several processes are started anew, which takes long.
        command += ["DATALOADER.NUM_WORKERS", "1" if processes > 1 else "2"]
        command += ["SOLVER.MAX_ITER", str(iterations), "OUTPUT_DIR", str(folder)]
        environment = {**os.environ, "DETECTRON2_DATASETS": str(data), "CUDA_VISIBLE_DEVICES": ""}
        self.log = open(folder / "stdout.txt", "a")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=environment | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def events(self) -> list[dict]:
        lines = self.events_file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_training(self, iterations: int) -> bool:
        """Return whether so many iterations were done; otherwise it has ended."""
        while (running := self.process.poll() is None) and self.iterations() < iterations:
            time.sleep(0.02)
        return running or self.iterations() >= iterations

    def iterations(self) -> int:
        """Return the number that all processes have done in this attempt."""
        return len({e["completed"] for e in self.events() if "completed" in e})

    def kill(self, kind: str) -> int:
        """End it; returns its status."""
        if kind == "one":
            os.kill(random.choice([e["pid"] for e in self.events()]), signal.SIGKILL)
        else:
            number = signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        status = self.process.wait(timeout=120)
        with contextlib.suppress(ProcessLookupError):  # of one killed process, the others
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()
        return status


def difference(a: object, b: object, path: str = "") -> str:
    """Return where two checkpoints differ in a bit, or ""."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        found = (difference(a[k], b[k], f"{path}/{k}") for k in a if k != "config")
        return next(filter(None, found), "")
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return next(filter(None, (difference(x, y, path) for x, y in zip(a, b))), "")
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return "" if same else path


def kill_and_resume(
    work: Path, kills: int, processes: int, iterations: int, kinds: list[str], seed: int
) -> dict[str, int]:
    """
    Returns:
        counts of what happened

    Raises:
        RuntimeError: a run did not go on from the last checkpoint that was written, or from the one
            being written; more was lost than the period allows; or the end is another one.
    """
    random.seed(seed)
    make_data(work / "data")
    alone = Training(work / "data", work / "alone", processes, iterations)
    if alone.process.wait(timeout=600):
        raise RuntimeError((work / "alone/stdout.txt").read_text()[-3000:])
    reference = torch.load(work / "alone/model_final.pth", weights_only=True)
    counts = dict.fromkeys(("kills", "during a save", "SIGTERM", "one process", "ends"), 0)
    folder, expected = work / "killed_0", {0}
    while True:
        training = Training(work / "data", folder, processes, iterations)
        # Of some of which a checkpoint is still being written.
        trains = training.wait_for_training(random.randint(1, 2 * PERIOD + 1))
        start = next((e["start"] for e in training.events() if "start" in e), None)
        if start is not None and start not in expected:
            raise RuntimeError(f"It went on at {start}, where checkpoints are of {expected}")
        if trains and counts["kills"] < kills:
            time.sleep(random.uniform(0, 0.6))
        done = counts["kills"] >= kills
        if done or training.process.poll() is not None:
            status = training.process.wait(timeout=600)
            if status:
                raise RuntimeError((folder / "stdout.txt").read_text()[-3000:])
            end = torch.load(folder / "model_final.pth", weights_only=True)
            if where := difference(reference, end):
                raise RuntimeError(f"{folder}: {where} is another one than without kills")
            counts["ends"] += 1
            if done:
                return counts
            folder, expected = work / f"killed_{counts['ends']}", {0}
            continue
        kind = random.choice(kinds)
        status = training.kill(kind)
        events = training.events()
        completed, writes, written = (
            max([e[key] for e in events if key in e], default=start)
            for key in ("completed", "writes", "written")
        )
        expected = {written, writes}  # of which the disk may have the latter
        is_stopped = kind == "SIGTERM" and status == 128 + signal.SIGTERM
        if completed - written > (0 if is_stopped else LOST):
            raise RuntimeError(f"{completed} iterations were done, but {written} are written")
        counts["kills"] += 1
        counts["during a save"] += writes > written
        counts["one process"] += kind == "one"
        counts["SIGTERM"] += is_stopped
        what = f"{kind}, status {status}, {start}..{completed}, {written} written"
        print(f"kill {counts['kills']}: {what}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_program(launch, slow_main, argument_parser().parse_args(sys.argv[2:]))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(
            kill_and_resume(
                Path(folder),
                options.kills,
                options.processes,
                options.iterations,
                ["all"] * 6 + ["SIGTERM"] + ["one"] * (options.processes > 1),
                options.seed,
            )
        )
