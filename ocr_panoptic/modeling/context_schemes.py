"""
The schemes that OCR is compared with, and its variants.

A scheme is added by one class and one line here: its name in MODEL.CONTEXT.NAME, the class, and the
config keys of the class's arguments.
"""

from ocr_panoptic.layers.aspp import ASPOCR, ASPP
from ocr_panoptic.layers.criss_cross import CrissCross
from ocr_panoptic.layers.double_attention import DoubleAttention
from ocr_panoptic.layers.dual_attention import DualAttention
from ocr_panoptic.layers.gt_ocr import GroundTruthOCR
from ocr_panoptic.layers.ocr import ACFOCR, DoubleAttentionOCR
from ocr_panoptic.layers.ppm import PPM, PPMOCR
from ocr_panoptic.layers.segmentation_transformer import JointTransformer, SegmentationTransformer
from ocr_panoptic.layers.self_attention import SelfAttention

from .context import CHANNELS, COMMON, CONTEXT_SCHEMES, DROPOUT, OF_PIXELS, RELATION

OF_BRANCHES = {
    "channels": "MODEL.OCR.KEY_CHANNELS",
    "out_channels": "MODEL.OCR.KEY_CHANNELS",
    "dilations": "MODEL.CONTEXT.DILATIONS",
    **COMMON,
}
CLASSES = {"num_classes": "MODEL.SEM_SEG_HEAD.NUM_CLASSES"}

CONTEXT_SCHEMES |= {
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
