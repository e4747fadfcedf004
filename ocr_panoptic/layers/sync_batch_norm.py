"""Batch norm over the batches of several processes on CPUs, which PyTorch does not support."""

import torch
from detectron2.layers import NaiveSyncBatchNorm
from detectron2.utils import comm
from fvcore.nn.distributed import differentiable_all_reduce
from torch import Tensor


class CPUSyncBatchNorm(NaiveSyncBatchNorm):
    """
    Detectron2's ``naiveSyncBN``, with the variance computed as the mean of squared distances.

    Detectron2 subtracts the squared mean from the mean square, in bfloat16 too. For nearly equal
    values, such as region representations at the start of a training, rounding makes the difference
    negative, and its root NaN. Processes may have batches of different sizes.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [N, C, h, w]; every process has to call it."""
        if comm.get_world_size() == 1 or not self.training:
            return super().forward(x)
        dtype, channels = x.dtype, x.shape[1]
        x = x.to(self.running_mean.dtype)
        count = x.new_full((1,), x.numel() // channels)
        *sums, count = differentiable_all_reduce(torch.cat([x.sum((0, 2, 3)), count])).split(
            [channels, 1]
        )
        centred = x - (mean := sums[0] / count)[:, None, None]
        var = differentiable_all_reduce(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * count / (count - 1), self.momentum)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(dtype)
