"""
The context schemes that a head can choose from, each behind one contract:

    scheme(x: [N, C, h, w], m: [N, K, h, w]) -> [N, C', h, w], with C' = scheme.out_channels

x are pixel representations, m soft object regions (coarse logits). A scheme is added by one class
and one line of CONTEXT_SCHEMES.
"""

from collections.abc import Callable

from detectron2.config import CfgNode
from torch import Tensor, nn

from ocr_panoptic.layers import OCR, GroundTruthOCR


class NoContext(nn.Module):
    """The plain baseline: pixel representations as they are, with dropout by channel."""

    def __init__(self, channels: int, dropout: float = 0.1):
        super().__init__()
        self.out_channels = channels
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        return self.dropout(x)


def _ocr_arguments(cfg: CfgNode) -> dict:
    return {
        "in_channels": cfg.MODEL.OCR.CHANNELS,
        "key_channels": cfg.MODEL.OCR.KEY_CHANNELS,
        "out_channels": cfg.MODEL.OCR.CHANNELS,
        "norm": cfg.MODEL.OCR.NORM,
        "dropout": cfg.MODEL.OCR.DROPOUT,
    }


def _build_ocr(cfg: CfgNode) -> OCR:
    return OCR(
        **_ocr_arguments(cfg),
        transform_convs=cfg.MODEL.OCR.TRANSFORM_CONVS,
        scale_relation=cfg.MODEL.OCR.SCALE_RELATION,
    )


CONTEXT_SCHEMES: dict[str, Callable[[CfgNode], nn.Module]] = {
    "none": lambda cfg: NoContext(cfg.MODEL.OCR.CHANNELS, cfg.MODEL.OCR.DROPOUT),
    "OCR": _build_ocr,
    "GT-OCR": lambda cfg: GroundTruthOCR(**_ocr_arguments(cfg)),
}


def build_context(cfg: CfgNode) -> nn.Module:
    """
    The scheme that MODEL.CONTEXT.NAME names.

    Raises:
        ValueError: for an unknown name.
    """
    name = cfg.MODEL.CONTEXT.NAME
    if name not in CONTEXT_SCHEMES:
        raise ValueError(
            f"MODEL.CONTEXT.NAME is {name}; the schemes are {', '.join(CONTEXT_SCHEMES)}"
        )
    return CONTEXT_SCHEMES[name](cfg)
