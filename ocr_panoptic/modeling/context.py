"""
The context schemes that a head can choose from, each behind the contract of
:class:`ocr_panoptic.layers.ContextScheme`.

A scheme is added by one class and one line of CONTEXT_SCHEMES: its name in MODEL.CONTEXT.NAME and a
function of (config, channels of the features of the backbone).
"""

from collections.abc import Callable

from detectron2.config import CfgNode
from torch import Tensor, nn

from ocr_panoptic.layers import (
    ACFOCR,
    ASPOCR,
    ASPP,
    OCR,
    PPM,
    ContextScheme,
    CrissCross,
    DoubleAttention,
    DoubleAttentionOCR,
    DualAttention,
    GroundTruthOCR,
    JointTransformer,
    SegmentationTransformer,
    SelfAttention,
)


class NoContext(ContextScheme):
    """The plain baseline: pixel representations as they are, with dropout by channel."""

    def __init__(self, channels: int, dropout: float = 0.1):
        super().__init__()
        self.out_channels = channels
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        return self.dropout(x)


def _norm_and_dropout(cfg: CfgNode) -> dict:
    return {"norm": cfg.MODEL.OCR.NORM, "dropout": cfg.MODEL.OCR.DROPOUT}


def _ocr_arguments(cfg: CfgNode) -> dict:
    return {
        "in_channels": cfg.MODEL.OCR.CHANNELS,
        "key_channels": cfg.MODEL.OCR.KEY_CHANNELS,
        "out_channels": cfg.MODEL.OCR.CHANNELS,
        **_norm_and_dropout(cfg),
    }


def _relation_arguments(cfg: CfgNode) -> dict:
    return {
        "transform_convs": cfg.MODEL.OCR.TRANSFORM_CONVS,
        "scale_relation": cfg.MODEL.OCR.SCALE_RELATION,
    }


def _build_aspp(cfg: CfgNode, feature_channels: int) -> ASPP:
    return ASPP(
        feature_channels,
        cfg.MODEL.OCR.KEY_CHANNELS,
        cfg.MODEL.OCR.KEY_CHANNELS,
        dilations=cfg.MODEL.CONTEXT.DILATIONS,
        **_norm_and_dropout(cfg),
    )


def _build_asp_ocr(cfg: CfgNode, feature_channels: int) -> ASPOCR:
    return ASPOCR(
        feature_channels,
        cfg.MODEL.OCR.KEY_CHANNELS,
        cfg.MODEL.OCR.KEY_CHANNELS,
        dilations=cfg.MODEL.CONTEXT.DILATIONS,
        **_norm_and_dropout(cfg),
        **_relation_arguments(cfg),
    )


def _build_segmentation_transformer(cfg: CfgNode, _: int) -> SegmentationTransformer:
    return SegmentationTransformer(
        cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
        **_ocr_arguments(cfg),
        encoder_self_attention=cfg.MODEL.CONTEXT.ENCODER_SELF_ATTENTION,
        decoder_self_attention=cfg.MODEL.CONTEXT.DECODER_SELF_ATTENTION,
    )


def _build_joint_transformer(cfg: CfgNode, _: int) -> JointTransformer:
    return JointTransformer(
        cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
        cfg.MODEL.OCR.CHANNELS,
        cfg.MODEL.OCR.KEY_CHANNELS,
        num_blocks=cfg.MODEL.CONTEXT.JOINT_BLOCKS,
        dropout=cfg.MODEL.OCR.DROPOUT,
    )


CONTEXT_SCHEMES: dict[str, Callable[[CfgNode, int], ContextScheme]] = {
    "none": lambda cfg, _: NoContext(cfg.MODEL.OCR.CHANNELS, cfg.MODEL.OCR.DROPOUT),
    "OCR": lambda cfg, _: OCR(
        **_ocr_arguments(cfg),
        **_relation_arguments(cfg),
        negative_slope=cfg.MODEL.OCR.NEGATIVE_SLOPE,
    ),
    "DA-OCR": lambda cfg, _: DoubleAttentionOCR(
        cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES, **_ocr_arguments(cfg)
    ),
    "ACF-OCR": lambda cfg, _: ACFOCR(**_ocr_arguments(cfg)),
    "GT-OCR": lambda cfg, _: GroundTruthOCR(**_ocr_arguments(cfg)),
    "ASP-OCR": _build_asp_ocr,
    "Segmentation-Transformer": _build_segmentation_transformer,
    "Joint-Transformer": _build_joint_transformer,
    "PPM": lambda cfg, c: PPM(c, cfg.MODEL.OCR.CHANNELS, **_norm_and_dropout(cfg)),
    "ASPP": _build_aspp,
    "Self-Attention": lambda cfg, _: SelfAttention(**_ocr_arguments(cfg)),
    "Double-Attention": lambda cfg, _: DoubleAttention(
        cfg.MODEL.CONTEXT.NUM_REGIONS, **_ocr_arguments(cfg)
    ),
    "DANet": lambda cfg, c: DualAttention(c, cfg.MODEL.OCR.CHANNELS, **_norm_and_dropout(cfg)),
    "CC-Attention": lambda cfg, c: CrissCross(c, cfg.MODEL.OCR.CHANNELS, **_norm_and_dropout(cfg)),
}


def build_context(cfg: CfgNode, feature_channels: int) -> ContextScheme:
    """
    The scheme that MODEL.CONTEXT.NAME names.

    Args:
        cfg: the config.
        feature_channels: of the backbone's features in front of the head's 3x3 convolution.

    Raises:
        ValueError: for an unknown name, and for a leaky ReLU in another scheme than OCR.
    """
    name = cfg.MODEL.CONTEXT.NAME
    if name not in CONTEXT_SCHEMES:
        raise ValueError(
            f"MODEL.CONTEXT.NAME is {name}; the schemes are {', '.join(CONTEXT_SCHEMES)}"
        )
    if cfg.MODEL.OCR.NEGATIVE_SLOPE and name != "OCR":
        raise ValueError(
            f"MODEL.OCR.NEGATIVE_SLOPE is {cfg.MODEL.OCR.NEGATIVE_SLOPE}, but MODEL.CONTEXT.NAME "
            f"is {name}; only OCR, of which published weights need it, has a leaky ReLU."
        )
    return CONTEXT_SCHEMES[name](cfg, feature_channels)


def check_region_supervision(context: ContextScheme, region_supervision: bool) -> None:
    """
    Raises:
        ValueError: if the predicted regions are to have no loss, but the scheme uses none.
    """
    if not region_supervision and (context.needs_truth or not context.uses_regions):
        raise ValueError(
            "MODEL.OCR.REGION_SUPERVISION is False, but the scheme of MODEL.CONTEXT.NAME "
            f"({type(context).__name__}) uses no predicted regions: set it to True, or name OCR or "
            "one of its variants."
        )
