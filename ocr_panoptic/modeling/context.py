"""
Builds a head's context scheme, which MODEL.CONTEXT.NAME names.

The schemes here are the paper's OCR and none; :mod:`.compared_schemes` adds OCR's variants, and the
schemes that OCR is compared with.
"""

from operator import attrgetter

from detectron2.config import CfgNode

from ocr_panoptic.config.rules import CONTEXT_SCHEMES
from ocr_panoptic.errors import IF_OWN, UserError
from ocr_panoptic.layers.context_scheme import ContextScheme, NoContext
from ocr_panoptic.layers.ocr import OCR

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

# Name of a scheme -> (class, {argument: config key}). A class with ``takes_features`` has one more
# argument, ``in_channels``: the number of channels of the backbone's features.
CONTEXT_SCHEMES |= {
    "none": (NoContext, {**CHANNELS, **DROPOUT}),
    "OCR": (OCR, {**PIXEL_ARGUMENTS, **RELATION}),
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
