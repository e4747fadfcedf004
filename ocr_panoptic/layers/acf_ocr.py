"""
OCR with the relation of ACFNet, one of the two that the paper compares with its own (paragraph
"Pixel-region relations" of its empirical analysis).

Shape shorthand: N images, K object regions, h w feature size, P = h * w pixels.
"""

import torch
from torch import Tensor

from .ocr import RegionContext


class ACFOCR(RegionContext):
    """
    OCR whose relation is the coarse segmentation itself: w_ik = softmax_k(m_ki). It has no
    parameters. The published code has no such scheme; this is the form that the paper describes.
    """

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """From m alone, normalised in float32 or better; see :meth:`RegionContext.relation`."""
        dtype = torch.promote_types(m.dtype, torch.float32)
        return m.flatten(2).softmax(dim=1, dtype=dtype).to(x.dtype)
