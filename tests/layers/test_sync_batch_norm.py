"""Batch norm of two processes on CPUs equals PyTorch's batch norm of the joined batch."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timm.layers import SyncBatchNormAct
from torch import Tensor, nn

from ocr_panoptic.layers import CPUSyncBatchNorm
from ocr_panoptic.layers.sync_norms import fit_sync_norms


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 3, 3, 4), (1, 3, 5, 2)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def gradients(norm: nn.Module, x: Tensor, outer: Tensor) -> list[Tensor]:
    """Return result and gradients for a batch, and the running statistics."""
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 3.0, -1.0]))
    y = norm.train()(x.requires_grad_())
    y.backward(outer)
    return [y.detach(), x.grad, norm.weight.grad, norm.bias.grad, *norm.buffers()]


def work(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder}/init", world_size=2, rank=rank)
    x = batches()[rank]
    found = gradients(CPUSyncBatchNorm(3).double(), x, x.detach().sin())
    torch.save(found, folder / f"{rank}.pth")
    # Detectron2's naiveSyncBN is NaN here: the mean square is rounded below the squared mean.
    alike = 1000 + 1e-4 * torch.randn(4, 3, 5, 1)
    assert CPUSyncBatchNorm(3).train()(alike).isfinite().all()
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path, forks):
    mp.start_processes(work, (tmp_path,), nprocs=2)
    (y0, dx0, *of_norm0, _), (y1, dx1, *of_norm1, _) = (
        torch.load(tmp_path / f"{rank}.pth") for rank in (0, 1)
    )

    def pixels(*maps: Tensor) -> Tensor:
        return torch.cat([part.permute(0, 2, 3, 1).flatten(0, 2) for part in maps])

    x = pixels(*batches())
    y, dx, dw, db, mean, var, _ = gradients(nn.BatchNorm1d(3).double(), x, x.detach().sin())
    both = [a + b for a, b in zip(of_norm0[:2], of_norm1[:2], strict=True)]
    for found, expected in [
        (pixels(y0, y1), y),
        (pixels(dx0, dx1), dx),
        (both, [dw, db]),
        (of_norm0[2:], [mean, var]),
        (of_norm1[2:], [mean, var]),
    ]:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_norm_with_an_activation_in_one_process_of_torchrun(monkeypatch):
    """PyTorch's norm would ask for a GPU at the first image."""
    model = nn.Sequential(SyncBatchNormAct(3))
    assert fit_sync_norms(model, "cpu") is model
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    with pytest.raises(ValueError, match="MODEL.TIMM.NORM is SyncBN, but"):
        fit_sync_norms(model, "cpu")
    assert fit_sync_norms(nn.Sequential(nn.SyncBatchNorm(3)), "cpu")[0].__class__ is nn.BatchNorm2d
