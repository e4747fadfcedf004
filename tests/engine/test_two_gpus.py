"""Two GPUs: SyncBN, mixed precision, accumulation, resuming, evaluation (``make test-gpu``)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.layers import OCR
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
    """Trained, resumed and evaluated by two; one GPU gets the same metrics of the weights."""
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
    scalars = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    losses = [v for row in scalars for name, v in row.items() if "loss" in name]
    assert losses and torch.isfinite(torch.tensor(losses)).all()
    state = torch.load(folder / "model_final.pth", weights_only=True)
    assert state["iteration"] == 5 and state["trainer"]["_trainer"]["grad_scaler"]

    weights = ["MODEL.WEIGHTS", folder / "model_final.pth", "OUTPUT_DIR", tmp_path / "one"]
    run(make_args(*opts, *weights, config=config), "--eval-only")
    (of_two,) = folder.glob("inference/*/metrics.json")
    (of_one,) = (tmp_path / "one").glob("inference/*/metrics.json")
    two, one = json.loads(of_two.read_text()), json.loads(of_one.read_text())
    assert (two.pop("run")["processes"], one.pop("run")["processes"]) == (2, 1)
    for task, metrics in two.items():
        # Batches of one image on either, so only the order of sums differs.
        assert one[task] == pytest.approx(metrics, abs=0.1, nan_ok=True), task


def layer_and_batch(norm: str) -> tuple[OCR, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = OCR(16, 8, 16, norm=norm, dropout=0.0).train()
    return layer, torch.randn(4, 16, 9, 11), torch.randn(4, 5, 9, 11)


def synchronised(rank: int, folder: Path) -> None:
    """This process's half of the batch; the output, gradients and statistics to a file."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{folder}/init", world_size=2, rank=rank)
    layer, x, m = layer_and_batch("SyncBN")
    layer = layer.cuda()
    half = slice(2 * rank, 2 * rank + 2)
    z = DistributedDataParallel(layer, device_ids=[rank])(x[half].cuda(), m[half].cuda())
    z.square().mean().backward()
    found = [z.detach(), *(p.grad for p in layer.parameters()), *layer.buffers()]
    torch.save([t.cpu() for t in found], folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_halves_of_a_batch_with_syncbn_are_the_whole_with_bn(tmp_path):
    mp.start_processes(synchronised, (tmp_path,), nprocs=2, start_method="spawn")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    layer, x, m = layer_and_batch("BN")
    z = layer(x, m)
    z.square().mean().backward()
    torch.testing.assert_close(torch.cat([first[0], second[0]]), z.detach(), rtol=1e-3, atol=1e-4)
    rest = [*(p.grad for p in layer.parameters()), *layer.buffers()]
    for parts in (first[1:], second[1:]):  # DistributedDataParallel averages the gradients
        torch.testing.assert_close(parts, rest, rtol=1e-3, atol=1e-4)
