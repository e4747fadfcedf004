"""The one way in which feature maps, logits and images change their size."""

import torch.nn.functional as F
from torch import Tensor


def resize(x: Tensor, size: tuple[int, int], align_corners: bool = False) -> Tensor:
    """
    Bilinear, without antialiasing.

    Args:
        x: [N, C, h, w]
        size: (H, W)
        align_corners: True maps corner pixels onto each other by their centres, False by their
            outer corners

    Returns:
        [N, C, H, W]; ``x`` itself where it has this size
    """
    if tuple(x.shape[2:]) == tuple(size):
        return x
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=align_corners)
