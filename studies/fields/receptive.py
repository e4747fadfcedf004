"""
Compute the theoretical receptive field: which pixels can change a feature map's cell?

The network runs once on meta tensors. For every row of each operator's output, the first and the
last image row that can change this output row are recorded; likewise for every column. This works
for any network (with strides, dilations, merged branches, resized maps), as long as this module
knows all operators.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from ocr_panoptic.errors import UserError

aten = torch.ops.aten

# For one axis: float64 [2, n], the first and the last pixel that each of n cells sees. A cell of
# padding sees nothing: its first pixel comes after its last.
AxisSpan = np.ndarray
NOTHING = np.array([[math.inf], [-math.inf]])

# Operators that mix channels or images, but not pixels; PyTorch does not tag them as pointwise.
KEEP_PLACES = {
    *(aten.cat, aten.slice, aten.split, aten.split_with_sizes, aten.clone, aten.detach, aten.alias),
    *(aten.native_batch_norm, aten.cudnn_batch_norm),  # at inference
    *(aten.hardswish, aten.hardswish_),
}
LARGEST = 2**14  # side of an image in pixels; a field that fills it counts as infinite


class PixelBox(NamedTuple):
    """A box in an image: rows top to bottom and columns left to right, both ends included."""

    top: float
    bottom: float
    left: float
    right: float

    @property
    def size(self) -> tuple[float, float]:
        """Return the height and width in pixels."""
        return self.bottom - self.top + 1, self.right - self.left + 1

    def is_inside(self, side: int) -> bool:
        """Return whether the box is inside an image of side x side pixels and touches no border."""
        return min(self.top, self.left) > 0 and max(self.bottom, self.right) < side - 1

    def within(self, height: int, width: int) -> "PixelBox":
        """Return the part of the box that is inside an image of this size."""
        top, left = max(self.top, 0), max(self.left, 0)
        return PixelBox(top, min(self.bottom, height - 1), left, min(self.right, width - 1))


def receptive_sizes(network: nn.Module, channels: int = 3) -> dict[str, tuple[float, float]]:
    """
    Return the size of the theoretical receptive field of each feature.

    UserError is raised if this module does not know an operator of the network.

    Args:
        network: network in evaluation mode that maps images [N, channels, H, W] to a dict of
            features [N, C, h, w].
        channels: number of channels of the images.

    Returns:
        height and width in pixels of a cell's field in an unbounded image, by feature name; they
        include the holes of dilated convolutions, and are infinite after a global pooling
    """
    side = 512
    boxes = receptive_boxes(network, side, side, channels)
    while side < LARGEST and not all(box.is_inside(side) for box in boxes.values()):
        side *= 2
        boxes = receptive_boxes(network, side, side, channels)
    return {
        name: box.size if box.is_inside(side) else (math.inf, math.inf)
        for name, box in boxes.items()
    }


def receptive_boxes(
    network: nn.Module, height: int, width: int, channels: int = 3
) -> dict[str, PixelBox]:
    """
    Return the theoretical receptive field of each feature's middle cell, for a given image size.

    UserError is raised if this module does not know an operator of the network.

    Args:
        network: network in evaluation mode that maps images [N, channels, H, W] to a dict of
            features [N, C, h, w].
        height, width: size of the image in pixels; the network must accept it.
        channels: number of channels of the image.

    Returns:
        box that contains the field of the cell (h // 2, w // 2), by feature name
    """
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    shapes = {name: torch.empty(tensor.shape, device="meta") for name, tensor in state.items()}
    image = torch.empty(1, channels, height, width, device="meta")
    assert not network.training  # in training, a batch norm sees the whole image
    with torch.no_grad(), _Propagation(image) as propagation:
        features = torch.func.functional_call(network, shapes, (image,))
    return {
        name: PixelBox(
            *(
                float(end)
                for span, cell in zip(propagation.spans[feature], middle(feature), strict=True)
                for end in span[:, cell if span.shape[1] > 1 else 0]
            )
        )
        for name, feature in features.items()
    }


def middle(feature: Tensor) -> tuple[int, int]:
    """Return the row h // 2 and column w // 2 of the middle cell in a map [..., h, w]."""
    return feature.shape[-2] // 2, feature.shape[-1] // 2


class _Propagation(TorchDispatchMode):
    """
    A dispatch mode that records which image pixels can change each tensor.

    Attributes:
        spans: for each tensor [N, C, h, w] that depends on the image, the first and last image row
            that can change each of the tensor's rows, [2, h], and likewise for columns, [2, w].
    """

    def __init__(self, image: Tensor):
        super().__init__()
        self.spans = WeakTensorKeyDictionary()
        self.spans[image] = tuple(np.arange(n) + np.zeros((2, 1)) for n in image.shape[2:])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        sources = [self.spans[t] for t in tensors if t in self.spans]
        if sources:
            shapes = [t.shape for t in tensors if t in self.spans]
            # Some operators also return indices or statistics.
            results = outputs[:1] if isinstance(outputs, tuple) else outputs
            for result in tree_leaves(results):
                self.spans[result] = tuple(
                    _span(func, args, axis, [s[axis] for s in sources], shapes, result.shape)
                    for axis in (0, 1)
                )
        return outputs


def _span(
    func: Any,
    args: Sequence[Any],
    axis: int,
    sources: Sequence[AxisSpan],
    shapes: Sequence[torch.Size],
    shape: torch.Size,
) -> AxisSpan:
    """Return the first and last image pixel, [2, n], on which each output row or column depends."""
    operator = func.overloadpacket
    if torch.Tag.pointwise in func.tags or (
        operator in KEEP_PLACES and all(s[2:] == shape[2:] for s in shapes)
    ):
        first, last = zip(*sources, strict=True)
        lowest, highest = np.broadcast_arrays(*first), np.broadcast_arrays(*last)
        return np.stack([np.min(lowest, axis=0), np.max(highest, axis=0)])
    if len(sources) == 1 and operator in REACH:
        n = shape[2 + axis] if len(shape) == 4 else 1
        return REACH[operator](sources[0], axis, n, func, *args[1:])
    raise UserError(
        f"What {func} lets a pixel see, from {', '.join(str([*s]) for s in shapes)} to "
        f"{[*shape]}, is not known: add it to {__name__}"
    )


def _window(
    source: AxisSpan, n: int, kernel: int, stride: int, padding: int, dilation: int
) -> AxisSpan:
    """Return the first and last image pixel, [2, n], on which each of n windows depends."""
    places = (np.arange(n) * stride - padding)[:, None] + np.arange(kernel) * dilation
    inside = (places >= 0) & (places < source.shape[1])
    seen = np.where(inside, source[:, places.clip(0, source.shape[1] - 1)], NOTHING[..., None])
    return np.stack([seen[0].min(axis=1), seen[1].max(axis=1)])


def _convolution(
    source, axis, n, func, weight, bias, stride, padding, dilation, transposed, *more
) -> AxisSpan:
    if transposed:
        raise UserError("The receptive field of transposed convolutions is not known")
    return _window(
        source, n, weight.shape[2 + axis], *(p[axis] for p in (stride, padding, dilation))
    )


def _max_pool(source, axis, n, func, kernel, stride=(), padding=(0, 0), dilation=(1, 1), *more):
    sides = (kernel, stride or kernel, padding, dilation)
    return _window(source, n, *(s[axis % len(s)] for s in sides))


def _average_pool(source, axis, n, func, kernel, stride=(), padding=(0, 0), *more) -> AxisSpan:
    return _max_pool(source, axis, n, func, kernel, stride, padding)


def _mean(source, axis, n, func, dims, *more) -> AxisSpan:
    is_taken = bool({2 + axis, axis - 2} & {*dims})
    return np.array([[source[0].min()], [source[1].max()]]) if is_taken else source


def _pad(source, axis, n, func, pad, *more) -> AxisSpan:
    before = ([*pad, 0, 0, 0, 0])[2 - 2 * axis]
    return _window(source, n, 1, 1, before, 1)


def _resize(source, axis, n, func, size, *options) -> AxisSpan:
    # Resizing unit vectors shows which input cells each output cell reads.
    cells = torch.eye(source.shape[1])[None, :, :, None]
    weights = func(cells, [n, 1], *_of_axis(options, axis))[0, :, :, 0].T.numpy()  # [n, cells]
    first = (weights != 0).argmax(axis=1)
    last = weights.shape[1] - 1 - (weights[:, ::-1] != 0).argmax(axis=1)
    return np.stack([source[0, first], source[1, last]])


def _of_axis(options: Sequence[Any], axis: int) -> list[Any]:
    """Return a resizing operator's options for one axis: align_corners (if any) and the scale."""
    corners = [option for option in options if isinstance(option, bool)]
    scales = [option for option in options if not isinstance(option, bool)]
    return [*corners, scales[axis] if scales else None, None]


REACH: dict[Any, Callable[..., AxisSpan]] = {
    aten.convolution: _convolution,
    aten.max_pool2d_with_indices: _max_pool,
    aten.avg_pool2d: _average_pool,
    aten.mean: _mean,
    aten.constant_pad_nd: _pad,
    aten.upsample_nearest2d: _resize,
    aten.upsample_bilinear2d: _resize,
}
