"""
Hierarchical multi-scale attention (Tao et al., 2020), which blends logits of several scales.

Shape shorthand: N images, C channels of the augmented representations, K classes, h w size of maps
at one scale, H W size of maps at the next larger scale.
"""

from typing import Any

from torch import Tensor, nn

from .conv import ConvNormReLU
from .resize import resize


class ScaleAttention(nn.Sequential):
    """
    Layers that predict a scale's weights [N, 1, h, w] in (0, 1) from representations [N, C, h, w].

    Two 3x3 conv-norm-ReLU layers (256 ``channels`` in the published code) are followed by a 1x1
    convolution without bias and a sigmoid.
    """

    def __init__(self, in_channels: int, channels: int, *, norm: str, negative_slope: float = 0.0):
        kinds: dict[str, Any] = {"norm": norm, "negative_slope": negative_slope}
        super().__init__(
            ConvNormReLU(in_channels, channels, kernel_size=3, **kinds),
            ConvNormReLU(channels, channels, kernel_size=3, **kinds),
            nn.Conv2d(channels, 1, kernel_size=1, bias=False),
            nn.Sigmoid(),
        )


def blend_scales(
    larger: Tensor, logits: Tensor, attention: Tensor, scale: float, align_corners: bool = False
) -> Tensor:
    """
    Return the logits of one scale, blended with the result for all larger scales.

    This is one step of the recursion from the largest scale to the smallest. Logits are blended,
    not probabilities.

    Args:
        larger: blended logits [N, K, H, W] of all larger scales
        logits: logits p [N, K, h, w] of this scale
        attention: weights a [N, 1, h, w] of this scale
        scale: factor by which the image is resized at this scale
        align_corners: convention by which ``up`` and ``down`` resize, see :func:`.resize`

    Returns:
        a * p + (1 - a) * down(larger), [N, K, h, w], if ``scale`` is 1 or more; otherwise
        up(a * p) + (1 - up(a)) * larger, [N, K, H, W]
    """
    if scale >= 1:
        larger = resize(larger, logits.shape[2:], align_corners)
        return attention * logits + (1 - attention) * larger
    size = larger.shape[2:]
    upper = 1 - resize(attention, size, align_corners)
    return resize(attention * logits, size, align_corners) + upper * larger
