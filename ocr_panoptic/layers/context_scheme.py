"""
The contract of every context scheme, the plain baseline, and recomputation to save memory.

Shape shorthand: N images, C input channels, O output channels, K classes = object regions, h w
feature size.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from .conv import ConvNormReLU


class ContextScheme(nn.Module):
    """
    A module that augments pixel representations by their context.

    Args:
        out_channels: number of output channels O, also an attribute.
        norm: norm of every convolution: any name that Detectron2's ``get_norm`` knows, "" for no
            norm.
        dropout: probability of dropping an output channel in training; a scheme applies the module
            ``dropout`` to its output.
        negative_slope: slope of every ReLU for negative values, see :class:`.ConvNormReLU`.

    Attributes:
        conv_norm_relu: makes a :class:`.ConvNormReLU` with the scheme's norm and slope.
        takes_features: the scheme takes the backbone's features and reduces them itself (PPM, ASPP,
            DANet, ...), instead of taking the pixel representations after the head's 3x3
            convolution (OCR). ``in_channels`` is then the number of feature channels.
        uses_regions: the scheme depends on m (OCR and its variants).
        needs_truth: m are the one-hot labels instead of the coarse logits, at inference too
            (GT-OCR).
        adds_logits: a scheme that needs the truth also gets the coarse logits, as channels K to 2K.
        recompute: see :func:`.run_part`; a head sets it.
    """

    takes_features = False
    uses_regions = False
    needs_truth = False
    adds_logits = False
    recompute = False

    def __init__(
        self,
        out_channels: int,
        *,
        norm: str = "SyncBN",
        dropout: float = 0.05,
        negative_slope: float = 0.0,
    ):
        super().__init__()
        self.out_channels = out_channels
        self.conv_norm_relu = partial(ConvNormReLU, norm=norm, negative_slope=negative_slope)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Return the augmented representations z [N, O, h, w].

        Args:
            x: pixel representations [N, C, h, w], or the backbone's features [N, I, h, w] if
                ``takes_features``
            m: soft object regions (logits of the coarse segmentation) [N, K, h, w]; may be None
                unless ``uses_regions``
        """
        raise NotImplementedError

    def in_bands(self, x: Tensor, m: Tensor) -> Iterator[Tensor]:
        """
        Yield the result of :meth:`forward` in bands of rows, from top to bottom.

        If the next layers see one pixel at a time, a scheme need not hold all of z. The default
        is a single band.
        """
        yield self(x, m)


class NoContext(ContextScheme):
    """The identity with dropout, which is 0.1 in the published baselines."""

    def __init__(self, channels: int = 512, *, dropout: float = 0.1):
        super().__init__(channels, dropout=dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return x with dropout; m is ignored."""
        return self.dropout(x)


def run_part(module: nn.Module, function: Callable[..., Any], *inputs: Any) -> Any:
    """
    Return ``function(*inputs)``, a part of the module with large intermediate results.

    If ``module.recompute`` is set, training keeps only the inputs. The backward pass computes the
    rest again, with the same random numbers (dropout). Norms update their running statistics once.

    The module holds every layer of the function, which may itself contain parts. The inputs are
    tensors, or dicts of tensors.
    """
    if not (module.recompute and module.training):
        return function(*inputs)
    flat, tree = tree_flatten(inputs)  # checkpoint() does not keep a tensor inside a dict
    return checkpoint(
        lambda *flat: function(*tree_unflatten(flat, tree)),
        *flat,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _running_statistics_kept(module)),
    )


@contextlib.contextmanager
def _running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Keep the running statistics of batch norms, by a momentum of 0 and a temporary counter."""
    # A counter of None is not enough: PyTorch's SyncBatchNorm does not train without a counter.
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    settings = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, count) in zip(norms, settings):
        norm.momentum, norm.num_batches_tracked = 0.0, None if count is None else count.clone()
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, settings):
            norm.momentum, norm.num_batches_tracked = momentum, count
