"""
Builds a head's context scheme: OCR, one of its variants, or a scheme that OCR is compared with.

To add a scheme, write its class and add an entry to :data:`.CONTEXT_SCHEMES` below.
"""

from operator import attrgetter

from detectron2.config import CfgNode

from ocr_panoptic.config.rules import CONTEXT_SCHEMES
from ocr_panoptic.errors import IF_OWN, UserError
from ocr_panoptic.layers.aspp import ASPOCR, ASPP
from ocr_panoptic.layers.context_scheme import ContextScheme, NoContext
from ocr_panoptic.layers.criss_cross import CrissCross
from ocr_panoptic.layers.double_attention import DoubleAttention
from ocr_panoptic.layers.dual_attention import DualAttention
from ocr_panoptic.layers.gt_ocr import GroundTruthOCR
from ocr_panoptic.layers.ocr import ACFOCR, OCR, DoubleAttentionOCR
from ocr_panoptic.layers.ppm import PPM, PPMOCR
from ocr_panoptic.layers.segmentation_transformer import JointTransformer, SegmentationTransformer
from ocr_panoptic.layers.self_attention import SelfAttention

DROPOUT = {"dropout": "MODEL.OCR.DROPOUT"}
COMMON = {
    "norm": "MODEL.OCR.NORM",
    "negative_slope": "MODEL.OCR.NEGATIVE_SLOPE",
    "recompute": "MODEL.OCR.RECOMPUTE",
    **DROPOUT,
}
CHANNELS = {"channels": "MODEL.OCR.CHANNELS"}
PIXEL_ARGUMENTS = {
    "in_channels": "MODEL.OCR.CHANNELS",
    "key_channels": "MODEL.OCR.KEY_CHANNELS",
    "out_channels": "MODEL.OCR.CHANNELS",
    **COMMON,
}
RELATION = {
    "transform_convs": "MODEL.OCR.TRANSFORM_CONVS",
    "scale_relation": "MODEL.OCR.SCALE_RELATION",
}

BRANCH_ARGUMENTS = {
    "channels": "MODEL.OCR.KEY_CHANNELS",
    "out_channels": "MODEL.OCR.KEY_CHANNELS",
    "dilations": "MODEL.CONTEXT.DILATIONS",
    **COMMON,
}
CLASSES = {"num_classes": "MODEL.SEM_SEG_HEAD.NUM_CLASSES"}

# Name of a scheme -> (class, {argument: config key}). A class with ``takes_features`` has one more
# argument, ``in_channels``: the number of channels of the backbone's features.
CONTEXT_SCHEMES |= {
    "none": (NoContext, {**CHANNELS, **DROPOUT}),
    "OCR": (OCR, {**PIXEL_ARGUMENTS, **RELATION}),
    "DA-OCR": (DoubleAttentionOCR, {**PIXEL_ARGUMENTS, **CLASSES}),
    "ACF-OCR": (ACFOCR, PIXEL_ARGUMENTS),
    "GT-OCR": (GroundTruthOCR, {**PIXEL_ARGUMENTS, "part": "MODEL.CONTEXT.TRUE_PART"}),
    "ASP-OCR": (ASPOCR, {**BRANCH_ARGUMENTS, **RELATION}),
    "PPM-OCR": (PPMOCR, {**PIXEL_ARGUMENTS, **RELATION}),
    "Segmentation-Transformer": (
        SegmentationTransformer,
        {
            **PIXEL_ARGUMENTS,
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
    "ASPP": (ASPP, BRANCH_ARGUMENTS),
    "Self-Attention": (SelfAttention, PIXEL_ARGUMENTS),
    "Double-Attention": (
        DoubleAttention,
        {**PIXEL_ARGUMENTS, "num_regions": "MODEL.CONTEXT.NUM_REGIONS"},
    ),
    "DANet": (DualAttention, {**CHANNELS, **COMMON}),
    "CC-Attention": (CrissCross, {**CHANNELS, **COMMON}),
}


def context_class(cfg: CfgNode) -> type[ContextScheme]:
    """Return the class of the context scheme that MODEL.CONTEXT.NAME names."""
    name = cfg.MODEL.CONTEXT.NAME
    if name not in CONTEXT_SCHEMES:
        raise UserError(
            f"MODEL.CONTEXT.NAME is {name}; expected {', '.join(CONTEXT_SCHEMES)}. {IF_OWN}"
        )
    return CONTEXT_SCHEMES[name][0]


def build_context(cfg: CfgNode, feature_channels: int) -> ContextScheme:
    """
    Build the context scheme that MODEL.CONTEXT.NAME names.

    ``feature_channels`` is the number of channels of the features that the head reads.
    """
    cls = context_class(cfg)
    _, keys = CONTEXT_SCHEMES[cfg.MODEL.CONTEXT.NAME]
    arguments = {argument: attrgetter(key)(cfg) for argument, key in keys.items()}
    if cls.takes_features:
        arguments["in_channels"] = feature_channels
    return cls(**arguments)
