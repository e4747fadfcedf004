"""
The cross-entropy of each pixel, from logits of a lower resolution, and one that makes rare classes
count more.

Shape shorthand: N images, K classes, h w size of the logits, H W size of the labels.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Bytes of the logits of a band of rows: on a CPU what its cache holds, on a GPU little of its
# memory for few kernels, see band_bytes.
BAND_BYTES = {"cpu": 2**20, "cuda": 2**27}


def band_bytes(device: torch.device) -> int:
    """Return BAND_BYTES of a device; of a small GPU at most 1/128 of its memory."""
    bytes_ = BAND_BYTES.get(device.type, BAND_BYTES["cuda"])
    if device.type == "cuda" and torch.cuda.is_available():
        bytes_ = min(bytes_, torch.cuda.get_device_properties(device).total_memory // 128)
    return bytes_


def pixel_cross_entropy(
    logits: Tensor, targets: Tensor, ignore_value: int, align_corners: bool = False
) -> Tensor:
    """
    The cross-entropy of each pixel after :func:`.resize` of the logits to the size of the labels.

    The full-size logits of all images take more memory than the network that predicts them. Here
    they are made for a few rows at a time, in both passes; for the backward pass only ``logits``
    and ``targets`` are kept. Computed in float32 or better, in autocast too.

    Args:
        logits: [N, K, h, w]
        targets: int64 labels [N, H, W]
        ignore_value: label of the pixels whose loss is 0
        align_corners: see :func:`.resize`

    Returns:
        [N, H, W], float32 or better
    """
    return _PixelCrossEntropy.apply(logits, targets, ignore_value, align_corners)


class _PixelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, *options: Any) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.options = options
        losses = logits.new_empty(targets.shape, dtype=_precision(logits))
        for band in _bands(logits, targets, options[1]):
            losses[:, band.rows] = _band_losses(logits[:, :, band.source], targets, band, *options)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets = ctx.saved_tensors
        result = torch.zeros_like(logits, dtype=_precision(logits))
        for band in _bands(logits, targets, ctx.options[1]):
            with torch.enable_grad():
                source = logits[:, :, band.source].detach().requires_grad_()
                losses = _band_losses(source, targets, band, *ctx.options)
            result[:, :, band.source] += torch.autograd.grad(
                losses, source, gradient[:, band.rows]
            )[0]
        return result.to(logits.dtype), None, None, None


class _Band(NamedTuple):
    """
    Attributes:
        rows: of the labels.
        source: rows of the logits that these depend on.
        lower, upper: the two rows of ``source`` between which each row lies.
        fraction: how far it is from the lower one.
    """

    rows: slice
    source: slice
    lower: Tensor
    upper: Tensor
    fraction: Tensor


def _bands(logits: Tensor, targets: Tensor, align_corners: bool) -> Iterator[_Band]:
    images, classes, h, _ = logits.shape
    height, width = targets.shape[1:]
    dtype = _precision(logits)
    step = max(1, band_bytes(logits.device) // (images * classes * width * dtype.itemsize))

    def position(row):  # in rows of the logits, as PyTorch's bilinear interpolation has it
        if align_corners:
            return row * ((h - 1) / max(height - 1, 1))
        return (row + 0.5) * (h / height) - 0.5

    for start in range(0, height, step):
        stop = min(start + step, height)
        # One row more on both sides, for positions that are rounded in another way.
        first = max(int(position(start)) - 1, 0)
        last = min(int(position(stop - 1)) + 2, h - 1)
        rows = torch.arange(start, stop, device=logits.device, dtype=dtype)
        exact = position(rows).clamp(0, h - 1) - first
        lower = exact.long()
        upper = (lower + 1).clamp(max=last - first)
        yield _Band(
            slice(start, stop), slice(first, last + 1), lower, upper, (exact - lower)[:, None]
        )


def _band_losses(
    source: Tensor, targets: Tensor, band: _Band, ignore_value: int, align_corners: bool
) -> Tensor:
    """
    Args:
        source: the band's rows of the logits [N, K, h', w]
        targets: labels of all rows [N, H, W]

    Returns:
        the losses of the band [N, H', W]
    """
    source = source.to(_precision(source))
    rows = torch.lerp(
        source.index_select(2, band.lower), source.index_select(2, band.upper), band.fraction
    )
    targets = targets[:, band.rows]
    full = F.interpolate(rows, size=targets.shape[1:], mode="bilinear", align_corners=align_corners)
    return F.cross_entropy(full, targets, ignore_index=ignore_value, reduction="none")


def _precision(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def rarity_weighted_cross_entropy(logits: Tensor, targets: Tensor, ignore_value: int) -> Tensor:
    """
    The mean cross-entropy in which a class has the weight 1 - its share of the batch's pixels, as
    SegFix's published code has it. It is 0, and so are its gradients, where all pixels are ignored
    or of one class (the published code's is NaN there).

    Args:
        logits: [N, K, H, W]
        targets: int64 labels [N, H, W]
        ignore_value: label of the pixels that do not count

    Returns:
        scalar, float32 or better
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = torch.stack([(targets == k).sum() for k in range(logits.shape[1])])
    total = counts.sum()
    weights = 1 - counts / total.clamp(min=1).to(logits.dtype)
    losses = F.cross_entropy(
        logits, targets, weights, ignore_index=ignore_value, reduction="none"
    ).sum()
    weight = (weights * counts).sum()
    return losses / torch.where(weight > 0, weight, 1)
