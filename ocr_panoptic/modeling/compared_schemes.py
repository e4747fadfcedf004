"""Adds OCR's variants, and the schemes that OCR is compared with, to :data:`.CONTEXT_SCHEMES`."""

from ocr_panoptic.config.rules import CONTEXT_SCHEMES
from ocr_panoptic.layers.aspp import ASPOCR, ASPP
from ocr_panoptic.layers.criss_cross import CrissCross
from ocr_panoptic.layers.dual_attention import DualAttention
from ocr_panoptic.layers.ocr_variants import (
    ACFOCR,
    DoubleAttention,
    DoubleAttentionOCR,
    GroundTruthOCR,
)
from ocr_panoptic.layers.ppm import PPM, PPMOCR
from ocr_panoptic.layers.segmentation_transformer import JointTransformer, SegmentationTransformer
from ocr_panoptic.layers.self_attention import SelfAttention

from .context import CHANNELS, COMMON, DROPOUT, PIXEL_ARGUMENTS, RELATION

BRANCH_ARGUMENTS = {
    "channels": "MODEL.OCR.KEY_CHANNELS",
    "out_channels": "MODEL.OCR.KEY_CHANNELS",
    "dilations": "MODEL.CONTEXT.DILATIONS",
    **COMMON,
}
CLASSES = {"num_classes": "MODEL.SEM_SEG_HEAD.NUM_CLASSES"}

CONTEXT_SCHEMES |= {
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
