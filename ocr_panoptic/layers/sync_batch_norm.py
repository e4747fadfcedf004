"""
Batch norm over the batches of all processes, for which no CPU waits for its GPU.

Shape shorthand: W processes, C channels.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

# The name of PyTorch 2.14, which warns of the former one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class SyncBatchNorm(nn.BatchNorm2d):
    """
    ``nn.SyncBatchNorm`` with weight, bias, running statistics and a momentum, for inputs that are
    empty in no process: its parameters, buffers and results. PyTorch's takes the empty ones out
    with boolean masks, for which the CPU waits for the GPU three times a layer, and does not train
    on CPUs. Without a wait the layer can also be part of a CUDA graph. In one process, and in
    evaluation mode, it is a batch norm.
    """

    @classmethod
    def convert(cls, norm: nn.Module) -> None:
        """Turn a batch norm, synchronised or not, into one of this class, in place."""
        norm.__class__ = cls

    @property
    def is_synchronised(self) -> bool:
        """Return whether there are other processes whose batches count."""
        return self.training and dist.is_initialized() and dist.get_world_size() > 1

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, h, w], of a size of its own in each process; all processes call it."""
        if not self.is_synchronised:
            return super().forward(x)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        statistics = self.running_mean, self.running_var
        return _Normalised.apply(x, self.weight, self.bias, *statistics, self.momentum, self.eps)


class _Normalised(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        x, kernels = _dense(x), _kernels(x)
        mean, inverse = kernels.batch_norm_stats(x, eps)
        count = mean.new_full((1,), x.numel() // x.shape[1])
        own = torch.cat([mean, inverse, count])
        flat = own.new_empty(dist.get_world_size() * len(own))
        _all_gather(flat, own)
        means, inverses, counts = flat.view(-1, len(own)).split([len(mean), len(mean), 1], dim=1)
        counts = counts.flatten()
        mean, inverse = kernels.batch_norm_gather_stats_with_counts(
            x, means, inverses, running_mean, running_var, momentum, eps, counts
        )
        ctx.save_for_backward(x, weight, mean, inverse, counts.int())
        return kernels.batch_norm_elemt(x, weight, bias, mean, inverse, eps)

    @staticmethod
    def backward(ctx, dy):
        x, weight, mean, inverse, counts = ctx.saved_tensors
        dy, kernels = _dense(dy), _kernels(x)
        sum_dy, sum_dy_xmu, of_weight, of_bias = kernels.batch_norm_backward_reduce(
            dy, x, mean, inverse, weight, *ctx.needs_input_grad[:3]
        )
        dx = None
        if ctx.needs_input_grad[0]:  # the same in all processes
            sums = torch.cat([sum_dy, sum_dy_xmu])
            dist.all_reduce(sums)
            dx = kernels.batch_norm_backward_elemt(
                dy, x, mean, inverse, weight, *sums.chunk(2), counts
            )
        # DistributedDataParallel reduces those of weight and bias.
        return dx, of_weight, of_bias, None, None, None, None


def _dense(x: Tensor) -> Tensor:
    is_channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return x if is_channels_last else x.contiguous()


def _kernels(x: Tensor) -> SimpleNamespace:
    """PyTorch has the kernels of synchronised batch norm for GPUs alone."""
    return torch if x.is_cuda else _CPU


# The kernels of PyTorch, by their names and arguments, for a CPU: by those of its batch norm.


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    mean, var = torch.batch_norm_update_stats(_wide(x), None, None, 0.0)
    return mean, torch.rsqrt(var + eps)


def _gather_stats(_, means, inverses, running_mean, running_var, momentum, eps, counts):
    count, shares = counts.sum(), (counts / counts.sum())[:, None]
    mean = (shares * means).sum(dim=0)
    var = (shares * (inverses**-2 - eps + (means - mean) ** 2)).sum(dim=0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var * count / (count - 1), momentum)
    return mean, torch.rsqrt(var + eps)


def _elemt(x, weight, bias, mean, inverse, _) -> Tensor:
    return F.batch_norm(x, mean, inverse**-2, weight, bias, eps=0.0)


def _backward_reduce(dy, x, mean, inverse, weight, *_) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
        dy, x, weight, mean, inverse**-2, None, None, False, 0.0, [False, True, True]
    )
    return of_bias, of_weight / inverse, of_weight, of_bias


def _backward_elemt(dy, x, mean, inverse, weight, sum_dy, sum_dy_xmu, counts) -> Tensor:
    count, scale = counts.sum(), inverse * weight
    slope = -scale * inverse**2 * sum_dy_xmu / count
    mean_part = F.batch_norm(
        _wide(x), mean, torch.ones_like(mean), slope, -scale * sum_dy / count, eps=0.0
    )
    return mean_part.addcmul_(_wide(dy), scale[:, None, None]).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


_CPU = SimpleNamespace(
    batch_norm_stats=_stats,
    batch_norm_gather_stats_with_counts=_gather_stats,
    batch_norm_elemt=_elemt,
    batch_norm_backward_reduce=_backward_reduce,
    batch_norm_backward_elemt=_backward_elemt,
)
