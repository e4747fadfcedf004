"""What every context scheme is, whichever it is.

Shape shorthand: N images, C input channels, K classes = object regions, h w feature size.
"""

from torch import Tensor, nn


class ContextScheme(nn.Module):
    """
    Augments pixel representations by their context.

    Attributes:
        out_channels: C' of the augmented representations.
        takes_features: whether the scheme takes the features of the backbone as they are, with a
            reduction of its own (PPM, ASPP, DANet, ...), instead of the pixel representations
            behind the head's 3x3 convolution (OCR).
        uses_regions: whether the scheme depends on m (OCR and its variants).
        needs_truth: whether m are the one-hot labels instead of the coarse logits, at inference
            too (GT-OCR).
    """

    out_channels: int
    takes_features = False
    uses_regions = False
    needs_truth = False

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Args:
            x: pixel representations [N, C, h, w]
            m: soft object regions (logits of the coarse segmentation) [N, K, h, w]

        Returns:
            z: augmented representations [N, C', h, w]
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")
