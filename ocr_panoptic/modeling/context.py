"""
The context schemes that a head can choose from, each behind the contract of
:class:`ocr_panoptic.layers.ContextScheme`.

A scheme is added by one class and one line of CONTEXT_SCHEMES: its name in MODEL.CONTEXT.NAME and a
function of (config, channels of the features of the backbone).
"""

from collections.abc import Callable

from detectron2.config import CfgNode
from torch import Tensor, nn

from ocr_panoptic.layers import OCR, ContextScheme, GroundTruthOCR


class NoContext(ContextScheme):
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


def _build_ocr(cfg: CfgNode, _: int) -> OCR:
    return OCR(
        **_ocr_arguments(cfg),
        transform_convs=cfg.MODEL.OCR.TRANSFORM_CONVS,
        scale_relation=cfg.MODEL.OCR.SCALE_RELATION,
    )


CONTEXT_SCHEMES: dict[str, Callable[[CfgNode, int], ContextScheme]] = {
    "none": lambda cfg, _: NoContext(cfg.MODEL.OCR.CHANNELS, cfg.MODEL.OCR.DROPOUT),
    "OCR": _build_ocr,
    "GT-OCR": lambda cfg, _: GroundTruthOCR(**_ocr_arguments(cfg)),
}


def build_context(cfg: CfgNode, feature_channels: int) -> ContextScheme:
    """
    The scheme that MODEL.CONTEXT.NAME names.

    Args:
        cfg: the config.
        feature_channels: of the backbone's features in front of the head's 3x3 convolution.

    Raises:
        ValueError: for an unknown name.
    """
    name = cfg.MODEL.CONTEXT.NAME
    if name not in CONTEXT_SCHEMES:
        raise ValueError(
            f"MODEL.CONTEXT.NAME is {name}; the schemes are {', '.join(CONTEXT_SCHEMES)}"
        )
    return CONTEXT_SCHEMES[name](cfg, feature_channels)
