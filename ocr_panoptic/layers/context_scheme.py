"""
The contract of every context scheme, and the plain baseline.

Shape shorthand: N images, C input channels, O output channels, K classes = object regions, h w
feature size.
"""

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn

from .conv import ConvNormReLU


class ContextScheme(nn.Module):
    """
    Augments pixel representations by their context.

    Args:
        out_channels: O, also an attribute.
        norm: of every convolution: any name that Detectron2's ``get_norm`` knows, "" for none.
        dropout: probability with which a channel of the output is dropped in training; a scheme
            applies the module ``dropout`` to its output.
        negative_slope: of every ReLU, see :class:`.ConvNormReLU`.

    Attributes:
        conv_norm_relu: makes a :class:`.ConvNormReLU` with the norm and the slope of the scheme.
        takes_features: whether the scheme takes the features of the backbone as they are, with a
            reduction of its own (PPM, ASPP, DANet, ...), instead of the pixel representations
            after the head's 3x3 convolution (OCR). ``in_channels`` is then their number.
        uses_regions: whether the scheme depends on m (OCR and its variants).
        needs_truth: whether m are the one-hot labels instead of the coarse logits, at inference
            too (GT-OCR).
        adds_logits: whether a scheme that needs the truth gets the coarse logits after it, as
            channels K to 2K.
        recompute: of :func:`.run_part`; a head sets it.
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
        Augment pixel representations.

        Args:
            x: pixel representations [N, C, h, w], or features of the backbone [N, I, h, w] where
                the scheme takes them
            m: soft object regions (logits of the coarse segmentation) [N, K, h, w]; None does
                where the scheme does not use them

        Returns:
            z: augmented representations [N, O, h, w]
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def in_bands(self, x: Tensor, m: Tensor) -> Iterator[Tensor]:
        """
        The z of :meth:`forward` for layers that see a pixel at a time: in bands of rows from top to
        bottom, so that a scheme need not hold all of z. Here it is one band.
        """
        yield self(x, m)


class NoContext(ContextScheme):
    """
    Pixel representations as they are.

    Args:
        channels: of input and output.
        dropout: of :class:`.ContextScheme`. The published baselines use 0.1.
    """

    def __init__(self, channels: int = 512, *, dropout: float = 0.1):
        super().__init__(channels, dropout=dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """x, with dropout; see :meth:`.ContextScheme.forward`."""
        return self.dropout(x)
