"""
Losses on logits that are enlarged to the size of the labels, a few rows at a time.

The full-size logits of all images take more memory than the network that predicts them. Here, both
the forward and the backward pass enlarge one band of rows at a time. Only the small logits and the
labels are kept for the backward pass.

Shape shorthand: N images, K classes, h w size of the logits, H W size of the labels.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .resize import resize

# Allowed bytes of a band's full-size logits. On a CPU, a band fits into the cache. On a GPU, a band
# takes little memory, yet there are few kernel launches.
BAND_BYTES = {"cpu": 2**20, "cuda": 2**27}


def band_bytes(device: torch.device) -> int:
    """Return the allowed size of a band's logits in bytes, at most 1/128 of a GPU's memory."""
    bytes_ = BAND_BYTES.get(device.type, BAND_BYTES["cuda"])
    if device.type == "cuda" and torch.cuda.is_available():
        bytes_ = min(bytes_, torch.cuda.get_device_properties(device).total_memory // 128)
    return bytes_


def full_size(logits: Tensor, targets: Tensor, align_corners: bool) -> Tensor:
    """Return all logits [N, K, h, w] resized to [N, K, H, W] at once, in float32 or better."""
    return resize(logits.to(_precision(logits)), targets.shape[1:], align_corners)


def compute_in_bands(
    compute: Callable[[Tensor, Tensor], Tensor],
    logits: Tensor,
    targets: Tensor,
    align_corners: bool = False,
    summed: bool = False,
) -> Tensor:
    """
    Return ``compute(resized logits, labels)``, computed in bands of rows to save memory.

    The logits are resized to the size of the labels. Gradients flow back to the logits.

    Args:
        compute: function that returns the result for a band, given the band's resized logits
            [N, K, rows, W] (float32 or better, under autocast too) and labels [N, rows, W].
        logits: logits [N, K, h, w].
        targets: int64 labels [N, H, W].
        align_corners: convention for resizing, see :func:`.resize`.
        summed: whether to sum the bands' results instead of joining them into [N, H, W].
    """
    return _InBands.apply(logits, targets, compute, align_corners, summed)


class _InBands(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, *options: Any) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.options = options
        compute, align_corners, summed = options
        results = [
            compute(enlarge(logits[:, :, source]), targets[:, rows])
            for rows, source, enlarge in _bands(logits, targets, align_corners)
        ]
        return torch.stack(results).sum(dim=0) if summed else torch.cat(results, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, targets = ctx.saved_tensors
        compute, align_corners, summed = ctx.options
        result = torch.zeros_like(logits, dtype=_precision(logits))
        for rows, source, enlarge in _bands(logits, targets, align_corners):
            with torch.enable_grad():
                small = logits[:, :, source].detach().requires_grad_()
                found = compute(enlarge(small), targets[:, rows])
            of_band = gradient if summed else gradient[:, rows]
            result[:, :, source] += torch.autograd.grad(found, small, of_band)[0]
        return result, None, None, None, None


def _bands(
    logits: Tensor, targets: Tensor, align_corners: bool
) -> Iterator[tuple[slice, slice, Callable[[Tensor], Tensor]]]:
    """
    Yield each band as (slice of the labels' rows, slice of the logits' rows, resizing function).

    The function resizes the band's logits to the size of the band's labels.
    """
    images, classes, h, _ = logits.shape
    height, width = targets.shape[1:]
    dtype = _precision(logits)
    step = max(1, band_bytes(logits.device) // (images * classes * width * dtype.itemsize))

    def position(row):  # row of the labels -> position in the logits, as PyTorch interpolates
        if align_corners:
            return row * ((h - 1) / max(height - 1, 1))
        return (row + 0.5) * (h / height) - 0.5

    for start in range(0, height, step):
        stop = min(start + step, height)
        # Take one more row on both sides, in case PyTorch rounds a position differently.
        first = max(int(position(start)) - 1, 0)
        last = min(int(position(stop - 1)) + 2, h - 1)
        rows = torch.arange(start, stop, device=logits.device, dtype=dtype)
        exact = position(rows).clamp(0, h - 1) - first
        size = (stop - start, width)
        enlarge = partial(_enlarge, exact, last - first, size, align_corners)
        yield slice(start, stop), slice(first, last + 1), enlarge


def _enlarge(
    rows: Tensor, last: int, size: tuple[int, int], align_corners: bool, source: Tensor
) -> Tensor:
    """
    Return ``source``, a band's logits, resized to ``size``.

    ``rows`` has the fractional position in ``source`` of each row of the result. ``last`` is the
    index of the last row of ``source``.
    """
    source = source.to(_precision(source))
    lower = rows.long()
    upper = (lower + 1).clamp(max=last)
    fraction = (rows - lower)[:, None]
    blended = torch.lerp(source.index_select(2, lower), source.index_select(2, upper), fraction)
    return F.interpolate(blended, size=size, mode="bilinear", align_corners=align_corners)


def _precision(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def pixel_cross_entropy(
    logits: Tensor, targets: Tensor, ignore_value: int, align_corners: bool = False
) -> Tensor:
    """
    Return the cross-entropy of each pixel after resizing the logits to the size of the labels.

    Logits [N, K, h, w] and int64 labels [N, H, W] give [N, H, W], float32 or better. The loss of
    pixels with the label ``ignore_value`` is 0.
    """

    def losses(full: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(full, labels, ignore_index=ignore_value, reduction="none")

    return compute_in_bands(losses, logits, targets, align_corners)
