"""Two GPUs: SyncBN, mixed precision, accumulation, resuming, evaluation (``make test-gpu``)."""

import json
import os
import subprocess
import sys

import pytest
import torch

from support.tiny_runs import OCR_CONFIG, ROOT, SEMANTIC_CONFIG, TINY_SEMANTIC

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def run(args, *flags: str) -> None:
    command = [sys.executable, str(ROOT / "train_net.py"), "--config-file", args.config_file]
    command += [*flags, *args.opts]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("config", [OCR_CONFIG, SEMANTIC_CONFIG], ids=lambda path: path.stem)
def test_a_run_on_two_gpus(tiny_data, make_args, tmp_path, config):
    opts = ["MODEL.DEVICE", "cuda", "SOLVER.IMS_PER_BATCH", 8, "SOLVER.ACCUMULATION_STEPS", 2]
    opts += ["SOLVER.AMP.ENABLED", True, "SOLVER.CHECKPOINT_PERIOD", 2, "DATALOADER.NUM_WORKERS", 2]
    opts += TINY_SEMANTIC if config == SEMANTIC_CONFIG else []
    two = ("--num-gpus", "2", "--dist-url", "auto")
    args = make_args(*opts, "SOLVER.MAX_ITER", 6, config=config)
    run(args, *two)
    folder = tmp_path / "run"
    (folder / "last_checkpoint").write_text("model_0000003.pth")
    run(args, *two, "--resume")
    log = (folder / "log.txt").read_text()
    assert "of the OCR head SyncBN" in log and "Training starts at iteration 4 of 6" in log
    state = torch.load(folder / "model_final.pth", weights_only=True)
    assert state["iteration"] == 5 and state["trainer"]["_trainer"]["grad_scaler"]

    weights = ["MODEL.WEIGHTS", folder / "model_final.pth", "OUTPUT_DIR", tmp_path / "one"]
    run(make_args(*opts, *weights, config=config), "--eval-only")
    (of_two,) = folder.glob("inference/*/metrics.json")
    (of_one,) = (tmp_path / "one").glob("inference/*/metrics.json")
    two, one = json.loads(of_two.read_text()), json.loads(of_one.read_text())
    assert (two.pop("run")["processes"], one.pop("run")["processes"]) == (2, 1)
    for task, metrics in two.items():
        # Each GPU has a batch of 1 image, so that only the order of sums differs.
        assert one[task] == pytest.approx(metrics, abs=0.1, nan_ok=True), task
