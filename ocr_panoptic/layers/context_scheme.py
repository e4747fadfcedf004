"""
The base class of context schemes, a baseline without context, and a function that saves memory.

Shape shorthand: N images, C channels of pixel representations, I feature channels, O output
channels, K classes = object regions, h w feature size.
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
    A module that augments pixel representations with their context.

    Args:
        out_channels: number of output channels, O.
        norm: name of the norm layers, as for Detectron2's ``get_norm``; "" for no norm.
        dropout: probability of dropping an output channel in training; subclasses apply
            ``self.dropout`` to their output.
        negative_slope: slope of every ReLU for negative values.
        recompute: whether the backward pass recomputes activations to save memory, in schemes that
            use :func:`.run_part`.

    Attributes:
        out_channels: number of output channels, O.
        conv_norm_relu: function that makes a :class:`.ConvNormReLU` with this norm and slope.
        takes_features: True if the input x holds the backbone's features (PPM, ASPP, DANet, ...),
            False if x holds pixel representations from the head (OCR).
        uses_regions: whether the scheme uses the input m, which by default holds soft object
            regions (OCR and variants).
        needs_truth: whether m instead holds one-hot ground truth, at inference too (GT-OCR).
        adds_logits: whether m also holds the coarse logits, after the ground truth, as channels K
            to 2K - 1.
    """

    takes_features = False
    uses_regions = False
    needs_truth = False
    adds_logits = False

    def __init__(
        self,
        out_channels: int,
        *,
        norm: str = "SyncBN",
        dropout: float = 0.05,
        negative_slope: float = 0.0,
        recompute: bool = False,
    ):
        super().__init__()
        self.recompute = recompute
        self.out_channels = out_channels
        self.conv_norm_relu = partial(ConvNormReLU, norm=norm, negative_slope=negative_slope)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Return the augmented representations z [N, O, h, w].

        Args:
            x: pixel representations [N, C, h, w], or the backbone's features [N, I, h, w] if
                ``takes_features`` is True
            m: soft object regions (logits of the coarse segmentation) [N, K, h, w]; None is
                allowed if ``uses_regions`` is False
        """
        raise NotImplementedError

    def in_bands(self, x: Tensor, m: Tensor) -> Iterator[Tensor]:
        """
        Yield the result of :meth:`forward` in bands of rows, from top to bottom.

        This saves memory if the next layers process each pixel separately. By default, the
        whole map is one band.
        """
        yield self(x, m)


class NoContext(ContextScheme):
    """A scheme without context, which only applies dropout (0.1 in the published baselines)."""

    def __init__(self, channels: int = 512, *, dropout: float = 0.1):
        super().__init__(channels, dropout=dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return x [N, C, h, w] with dropout; m is ignored."""
        return self.dropout(x)


def run_part(module: nn.Module, function: Callable[..., Any], *inputs: Any) -> Any:
    """
    Return ``function(*inputs)``; in training, save memory if ``module.recompute`` is True.

    To save memory, only the inputs are kept, and the backward pass runs the function again with
    the same random numbers (for dropout). Norms update their running statistics only once.

    Args:
        module: module that contains every layer that the function uses.
        function: function to run, which is allowed to call :func:`run_part` itself.
        inputs: tensors, or dicts of tensors.
    """
    if not (module.recompute and module.training):
        return function(*inputs)
    flat, tree = tree_flatten(inputs)  # checkpoint() does not save tensors inside dicts
    return checkpoint(
        lambda *flat: function(*tree_unflatten(flat, tree)),
        *flat,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _running_statistics_kept(module)),
    )


@contextlib.contextmanager
def _running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Keep batch norms from updating their running statistics inside the ``with`` block."""
    # The temporary counter cannot be None: PyTorch's SyncBatchNorm does not train without one.
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    settings = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, count) in zip(norms, settings):
        norm.momentum, norm.num_batches_tracked = 0.0, None if count is None else count.clone()
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, settings):
            norm.momentum, norm.num_batches_tracked = momentum, count
