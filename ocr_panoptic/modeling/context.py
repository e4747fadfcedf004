"""
The context schemes that a head can choose from.

A scheme is added by one class and one line of ``CONTEXT_SCHEMES``: its name in MODEL.CONTEXT.NAME,
the class, and the config keys of the class's arguments.
"""

from operator import attrgetter

from detectron2.config import CfgNode

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers import (
    ACFOCR,
    ASPOCR,
    ASPP,
    OCR,
    PPM,
    PPMOCR,
    ContextScheme,
    CrissCross,
    DoubleAttention,
    DoubleAttentionOCR,
    DualAttention,
    GroundTruthOCR,
    JointTransformer,
    NoContext,
    SegmentationTransformer,
    SelfAttention,
)

DROPOUT = {"dropout": "MODEL.OCR.DROPOUT"}
COMMON = {"norm": "MODEL.OCR.NORM", "negative_slope": "MODEL.OCR.NEGATIVE_SLOPE", **DROPOUT}
CHANNELS = {"channels": "MODEL.OCR.CHANNELS"}
OF_PIXELS = {
    "in_channels": "MODEL.OCR.CHANNELS",
    "key_channels": "MODEL.OCR.KEY_CHANNELS",
    "out_channels": "MODEL.OCR.CHANNELS",
    **COMMON,
}
OF_BRANCHES = {
    "channels": "MODEL.OCR.KEY_CHANNELS",
    "out_channels": "MODEL.OCR.KEY_CHANNELS",
    "dilations": "MODEL.CONTEXT.DILATIONS",
    **COMMON,
}
RELATION = {
    "transform_convs": "MODEL.OCR.TRANSFORM_CONVS",
    "scale_relation": "MODEL.OCR.SCALE_RELATION",
}
CLASSES = {"num_classes": "MODEL.SEM_SEG_HEAD.NUM_CLASSES"}

# Name -> (class, {argument: config key}). A class with ``takes_features`` has one more argument,
# ``in_channels``, which is the number of the features' channels.
CONTEXT_SCHEMES: dict[str, tuple[type[ContextScheme], dict[str, str]]] = {
    "none": (NoContext, {**CHANNELS, **DROPOUT}),
    "OCR": (OCR, {**OF_PIXELS, **RELATION}),
    "DA-OCR": (DoubleAttentionOCR, {**OF_PIXELS, **CLASSES}),
    "ACF-OCR": (ACFOCR, OF_PIXELS),
    "GT-OCR": (GroundTruthOCR, {**OF_PIXELS, "part": "MODEL.CONTEXT.TRUE_PART"}),
    "ASP-OCR": (ASPOCR, {**OF_BRANCHES, **RELATION}),
    "PPM-OCR": (PPMOCR, {**OF_PIXELS, **RELATION}),
    "Segmentation-Transformer": (
        SegmentationTransformer,
        {
            **OF_PIXELS,
            **CLASSES,
            "encoder_self_attention": "MODEL.CONTEXT.ENCODER_SELF_ATTENTION",
            "decoder_self_attention": "MODEL.CONTEXT.DECODER_SELF_ATTENTION",
        },
    ),
    "Joint-Transformer": (
        JointTransformer,
        {
            **CLASSES,
            **CHANNELS,
            "key_channels": "MODEL.OCR.KEY_CHANNELS",
            "num_blocks": "MODEL.CONTEXT.JOINT_BLOCKS",
            **DROPOUT,
        },
    ),
    "PPM": (PPM, {"out_channels": "MODEL.OCR.CHANNELS", **COMMON}),
    "ASPP": (ASPP, OF_BRANCHES),
    "Self-Attention": (SelfAttention, OF_PIXELS),
    "Double-Attention": (
        DoubleAttention,
        {**OF_PIXELS, "num_regions": "MODEL.CONTEXT.NUM_REGIONS"},
    ),
    "DANet": (DualAttention, {**CHANNELS, **COMMON}),
    "CC-Attention": (CrissCross, {**CHANNELS, **COMMON}),
}


def schemes_reading(key: str) -> tuple[str, ...]:
    """
    Args:
        key: of the config, such as "MODEL.CONTEXT.DILATIONS".

    Returns:
        names of the schemes that depend on it
    """
    return tuple(n for n, (_, arguments) in CONTEXT_SCHEMES.items() if key in arguments.values())


def context_class(cfg: CfgNode) -> type[ContextScheme]:
    """
    The class of the scheme that MODEL.CONTEXT.NAME names.

    Raises:
        ValueError: for an unknown name.
    """
    return _entry(cfg)[0]


def build_context(cfg: CfgNode, feature_channels: int) -> ContextScheme:
    """
    The scheme that MODEL.CONTEXT.NAME names.

    Args:
        cfg: the config.
        feature_channels: of the backbone's features, before the head's 3x3 convolution.

    Raises:
        ValueError: for an unknown name.
    """
    cls, keys = _entry(cfg)
    arguments = {argument: attrgetter(key)(cfg) for argument, key in keys.items()}
    if cls.takes_features:
        arguments["in_channels"] = feature_channels
    return cls(**arguments)


def _entry(cfg: CfgNode) -> tuple[type[ContextScheme], dict[str, str]]:
    name = cfg.MODEL.CONTEXT.NAME
    if name not in CONTEXT_SCHEMES:
        raise UserError(
            f"MODEL.CONTEXT.NAME is {name}; the schemes are {', '.join(CONTEXT_SCHEMES)}"
        )
    return CONTEXT_SCHEMES[name]


def check_region_supervision(context: ContextScheme, region_supervision: bool) -> None:
    """
    Raises:
        ValueError: if the predicted regions are to have no loss, but the scheme uses none.
    """
    if not region_supervision and (context.needs_truth or not context.uses_regions):
        raise UserError(
            "MODEL.OCR.REGION_SUPERVISION is False, but the scheme of MODEL.CONTEXT.NAME "
            f"({type(context).__name__}) uses no predicted regions: set it to True, or name OCR or "
            "one of its variants."
        )
