"""Halves of a batch in two processes, against one batch norm of the whole; without waiting."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ocr_panoptic.engine.launch import leave_process_group
from ocr_panoptic.layers import SyncBatchNorm, sync_batch_norm

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "item")
SHAPES = (3, 4, 5, 6), (1, 4, 3, 2)  # another number and size of maps in each process


class NoWaits(TorchDispatchMode):
    """Raises an error for what makes a CPU wait for its GPU; notes what processes exchange."""

    def __init__(self):
        super().__init__()
        self.exchanges: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        masks = [i for i in args[1] if i is not None] if name == "index" else []
        if name in WAITS or any(mask.dtype == torch.bool for mask in masks):
            raise AssertionError(f"{name} waits for the GPU")
        if function.namespace == "c10d":
            self.exchanges.append(name)
        return function(*args, **(kwargs or {}))


def batch(rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps and the gradients of their normalised ones."""
    generator = torch.Generator().manual_seed(rank)
    x, dy = torch.randn(2, *SHAPES[rank], generator=generator)
    scale, mean = (torch.tensor(v).view(4, 1, 1) for v in ([1.0, 0.2, 5, 1], [0.0, 1, -30, 100]))
    return (x * scale + mean).to(dtype), dy.to(dtype)


def norm_with_statistics(kind: type[nn.Module]) -> nn.Module:
    norm = kind(4, momentum=0.3)
    for i, tensor in enumerate(norm.state_dict().values()):
        tensor.copy_(torch.linspace(i + 1, i + 2, 4) if tensor.ndim else tensor)
    return norm


def check_kernel(name: str, function):
    """The function, called as PyTorch declares the kernel of a GPU."""
    kinds = {"Tensor": torch.Tensor, "float": float, "bool": bool}
    overload = getattr(torch.ops.aten, name).default

    def checked(*args):
        types = (str(a.type) for a in overload._schema.arguments)
        declared = [kinds[name.removeprefix("Optional[").rstrip("]")] for name in types]
        assert declared == [torch.Tensor if torch.is_tensor(a) else type(a) for a in args]
        if name == "batch_norm_backward_elemt":  # whose counts are read from memory as they lie
            assert args[-1].dtype == torch.int32 and args[-1].is_contiguous()
        return function(*args)

    return checked


def one_process(rank: int, folder, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/init", world_size=2, rank=rank)
    kernels = {k: check_kernel(k, f) for k, f in vars(sync_batch_norm._CPU).items()}
    sync_batch_norm._CPU = SimpleNamespace(**kernels)
    norm = norm_with_statistics(SyncBatchNorm)
    x, dy = batch(rank, dtype)
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    with NoWaits() as mode:
        y = norm(x)
        y.backward(dy)
    assert mode.exchanges == ["_allgather_base_", "allreduce_"]  # one in each pass
    assert y.dtype == x.grad.dtype == dtype and y.is_contiguous(memory_format=memory_format)
    found = [y.detach(), x.grad, norm.weight.grad, norm.bias.grad, *norm.buffers()]
    torch.save(found, folder / f"{rank}.pt")
    leave_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_two_processes_are_the_norm_of_the_joined_batch(tmp_path, forks, dtype, memory_format):
    mp.start_processes(one_process, (tmp_path, dtype, memory_format), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    def pixels(maps: list[torch.Tensor]) -> torch.Tensor:
        """[1, C, 1, P] of all maps."""
        return torch.cat([m.double().transpose(0, 1).flatten(1) for m in maps], 1)[None, :, None]

    norm = norm_with_statistics(nn.BatchNorm2d).double()
    xs, dys = zip(*(batch(rank, dtype) for rank in range(2)))
    x = pixels(xs).requires_grad_()
    y = norm(x)
    y.backward(pixels(dys))
    # A channel has a mean a hundred times its standard deviation.
    close = dict.fromkeys(("rtol", "atol"), 1e-2 if dtype == torch.bfloat16 else 1e-4)
    torch.testing.assert_close(pixels([p[0] for p in parts]), y.detach(), **close)
    torch.testing.assert_close(pixels([p[1] for p in parts]), x.grad, **close)
    for i, parameter in ((2, norm.weight), (3, norm.bias)):  # DistributedDataParallel adds them
        total = sum(part[i] for part in parts).double()
        torch.testing.assert_close(total, parameter.grad, **close)
    for part in parts:
        for found, expected in zip(part[4:], norm.buffers(), strict=True):
            torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5)


def test_alone_and_in_evaluation_mode_it_is_a_batch_norm(monkeypatch):
    plain, ours = (norm_with_statistics(kind) for kind in (nn.BatchNorm2d, SyncBatchNorm))
    assert plain.state_dict().keys() == ours.state_dict().keys()
    x = batch(0, torch.float32)[0]
    assert torch.equal(plain(x), ours(x))
    assert all(map(torch.equal, plain.buffers(), ours.buffers()))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert ours.is_synchronised
    assert torch.equal(plain.eval()(x), ours.eval()(x))


def test_pytorchs_waits():
    """PyTorch's norm waits, which the mode above relies on."""
    x = torch.ones(3)
    for wait in (x.sum().item, lambda: x[x > 0], x.nonzero):
        with NoWaits(), pytest.raises(AssertionError):
            wait()
    with NoWaits():
        assert torch.equal(x[torch.tensor([0, 2])], torch.ones(2))
