"""Keys of the config that nothing reads: set by somebody who believes that they work."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from detectron2.config import CfgNode, get_cfg

from ocr_panoptic.config import add_ocr_config
from ocr_panoptic.modeling.context import schemes_reading

from .config_files import values_by_key

logger = logging.getLogger(__name__)

TIMM_BUILDERS = (
    *("build_timm_backbone", "build_timm_fpn_backbone"),
    "build_timm_simple_fpn_backbone",
)


class Reader(NamedTuple):
    """
    Attributes:
        name: what of the config has to be chosen for the keys to be read.
        is_chosen: whether a config chooses it.
        keys: keys, or sections with all their keys, that nothing else reads.
    """

    name: str
    is_chosen: Callable[[CfgNode], bool]
    keys: tuple[str, ...]


READERS = (
    Reader(
        "MODEL.META_ARCHITECTURE OCRSemanticSegmentor or SegFix",
        lambda cfg: cfg.MODEL.META_ARCHITECTURE in ("OCRSemanticSegmentor", "SegFix"),
        (
            *("MODEL.ALIGN_CORNERS", "MODEL.PAD_TO_MULTIPLE"),
            *("INPUT.FIXED_SIZE", "INPUT.INTERPOLATION", "INPUT.BRIGHTNESS_SHIFT"),
            *("INPUT.RANDOM_SCALE", "INPUT.RANDOM_ASPECT"),
            *("TEST.SCALES", "TEST.FLIP", "TEST.SLIDING_WINDOW", "TEST.ACCUMULATOR_DEVICE"),
        ),
    ),
    Reader(
        "MODEL.META_ARCHITECTURE OCRSemanticSegmentor",
        lambda cfg: cfg.MODEL.META_ARCHITECTURE == "OCRSemanticSegmentor",
        ("MODEL.HMSA", "INPUT.CROP.SINGLE_CATEGORY_MAX_AREA"),
    ),
    Reader(
        "MODEL.META_ARCHITECTURE PanopticFPN",
        lambda cfg: cfg.MODEL.META_ARCHITECTURE == "PanopticFPN",
        ("INPUT.CROP.AFTER_RESIZE",),
    ),
    Reader(
        "INPUT.CROP.ENABLED True",
        lambda cfg: cfg.INPUT.CROP.ENABLED,
        ("INPUT.CROP.AFTER_RESIZE",),
    ),
    Reader(
        "MODEL.META_ARCHITECTURE SegFix",
        lambda cfg: cfg.MODEL.META_ARCHITECTURE == "SegFix",
        ("MODEL.SEGFIX",),
    ),
    Reader(
        "TEST.SEGFIX.WEIGHTS",
        lambda cfg: bool(cfg.TEST.SEGFIX.WEIGHTS),
        ("TEST.SEGFIX.CONFIG_FILE", "TEST.SEGFIX.SCALE"),
    ),
    Reader(
        "MODEL.META_ARCHITECTURE PanopticFPN or OCRSemanticSegmentor",
        lambda cfg: cfg.MODEL.META_ARCHITECTURE != "SegFix",
        ("TEST.SEGFIX", "TEST.SAVE_PREDICTIONS"),
    ),
    Reader(
        "MODEL.HMSA.ENABLED True",
        lambda cfg: cfg.MODEL.HMSA.ENABLED,
        ("MODEL.HMSA.SCALE_LOSS_WEIGHT",),
    ),
    Reader(
        "MODEL.SEM_SEG_HEAD.NAME ContextSemSegHead",
        lambda cfg: cfg.MODEL.SEM_SEG_HEAD.NAME == "ContextSemSegHead",
        tuple(
            f"MODEL.SEM_SEG_HEAD.COARSE_{key}"
            for key in ("IN_FEATURES", "KERNEL", "CHANNELS", "DROPOUT")
        ),
    ),
    Reader(
        "MODEL.SEM_SEG_HEAD.NAME OCRSemSegFPNHead or ContextSemSegHead",
        lambda cfg: cfg.MODEL.SEM_SEG_HEAD.NAME in ("OCRSemSegFPNHead", "ContextSemSegHead"),
        (
            *("MODEL.CONTEXT", "MODEL.OCR.REGION_SUPERVISION"),
            *("MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS", "MODEL.SEM_SEG_HEAD.LOSS_TYPE"),
            "MODEL.SEM_SEG_HEAD.COARSE_LOSS_TYPE",
        ),
    ),
    Reader(
        "MODEL.SEM_SEG_HEAD.NAME OCRSemSegFPNHead, ContextSemSegHead or SegFixHead",
        lambda cfg: cfg.MODEL.SEM_SEG_HEAD.NAME != "SemSegFPNHead",
        ("MODEL.OCR.NEGATIVE_SLOPE",),
    ),
    Reader(
        "MODEL.SEM_SEG_HEAD.LOSS_TYPE or COARSE_LOSS_TYPE ohem",
        lambda cfg: (
            "ohem" in cfg.MODEL.SEM_SEG_HEAD.LOSS_TYPE + cfg.MODEL.SEM_SEG_HEAD.COARSE_LOSS_TYPE
        ),
        ("MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD", "MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT"),
    ),
    Reader(
        "MODEL.BACKBONE.NAME build_dilated_resnet_backbone",
        lambda cfg: cfg.MODEL.BACKBONE.NAME == "build_dilated_resnet_backbone",
        tuple(
            f"MODEL.RESNETS.{key}"
            for key in (
                *("RES4_DILATION", "RES5_MULTI_GRID", "STEM_TYPE"),
                *("CONTRACT_DILATION", "STEM_CEIL_MODE"),
            )
        ),
    ),
    Reader(
        f"MODEL.BACKBONE.NAME {', '.join(TIMM_BUILDERS[:-1])} or {TIMM_BUILDERS[-1]}",
        lambda cfg: cfg.MODEL.BACKBONE.NAME in TIMM_BUILDERS,
        ("MODEL.TIMM", "SOLVER.LAYER_DECAY"),
    ),
    Reader(
        "MODEL.TIMM.FROZEN False",
        lambda cfg: not cfg.MODEL.TIMM.FROZEN,
        ("MODEL.TIMM.DROP_PATH", "SOLVER.LAYER_DECAY"),
    ),
    # 0 freezes nothing, which is what a network of timm does.
    Reader(
        "a ResNet of Detectron2 (networks of timm learn all of it with 0, nothing with "
        "MODEL.TIMM.FROZEN True)",
        lambda cfg: (
            cfg.MODEL.BACKBONE.NAME not in TIMM_BUILDERS or cfg.MODEL.BACKBONE.FREEZE_AT == 0
        ),
        ("MODEL.BACKBONE.FREEZE_AT",),
    ),
    Reader(
        "SOLVER.OPTIMIZER SGD",
        lambda cfg: cfg.SOLVER.OPTIMIZER == "SGD",
        ("SOLVER.MOMENTUM", "SOLVER.NESTEROV"),
    ),
    Reader("MODEL.EMA.ENABLED True", lambda cfg: cfg.MODEL.EMA.ENABLED, ("MODEL.EMA.DECAY",)),
    Reader(
        "SOLVER.AMP.ENABLED True", lambda cfg: cfg.SOLVER.AMP.ENABLED, ("SOLVER.AMP.PRECISION",)
    ),
    Reader(
        "SOLVER.LR_SCHEDULER_NAME WarmupPolyLR",
        lambda cfg: cfg.SOLVER.LR_SCHEDULER_NAME == "WarmupPolyLR",
        ("SOLVER.POLY_LR_POWER", "SOLVER.POLY_LR_CONSTANT_ENDING"),
    ),
    Reader(
        "SOLVER.LR_SCHEDULER_NAME WarmupCosineLR",
        lambda cfg: cfg.SOLVER.LR_SCHEDULER_NAME == "WarmupCosineLR",
        ("SOLVER.BASE_LR_END",),
    ),
    *(
        Reader(
            f"MODEL.CONTEXT.NAME {' or '.join(schemes_reading(key))}",
            lambda cfg, key=key: cfg.MODEL.CONTEXT.NAME in schemes_reading(key),
            (key,),
        )
        for key in (
            "MODEL.CONTEXT.TRUE_PART",
            "MODEL.CONTEXT.ENCODER_SELF_ATTENTION",
            "MODEL.CONTEXT.DECODER_SELF_ATTENTION",
            "MODEL.CONTEXT.JOINT_BLOCKS",
            "MODEL.CONTEXT.DILATIONS",
            "MODEL.CONTEXT.NUM_REGIONS",
            "MODEL.OCR.TRANSFORM_CONVS",
            "MODEL.OCR.SCALE_RELATION",
        )
    ),
)

# The size and weight of a refined head. With Detectron2's own head they are logged, not refused, so
# that MODEL.SEM_SEG_HEAD.NAME alone turns a config with OCR into its plain baseline.
OF_REFINED_HEAD = tuple(
    f"MODEL.OCR.{key}"
    for key in (
        *("CHANNELS", "KEY_CHANNELS", "DROPOUT", "NORM", "COARSE_LOSS_WEIGHT", "RECOMPUTE"),
        *("RESIDUAL", "COARSE_START"),
    )
)


def check_unread_keys(cfg: CfgNode) -> None:
    """
    Refuse keys that the chosen model does not read but that are set to something else than their
    default, and Detectron2's TEST.AUG, which nothing here reads.

    Args:
        cfg: as it was written, before a norm or device of this machine is put into it.

    Raises:
        ValueError: naming every such key, its default, and what reads it.
    """
    default = get_cfg()
    add_ocr_config(default)
    usual = values_by_key(default)
    changed = {k: v for k, v in values_by_key(cfg).items() if v != usual[k]}
    faults = {
        key: f"{key} is {value!r} (default {usual[key]!r}); it is read with {reader.name} alone"
        for reader in reversed(READERS)  # what a key is read with first is what it is named with
        if not reader.is_chosen(cfg)
        for key, value in changed.items()
        if any(f"{key}.".startswith(f"{section}.") for section in reader.keys)
    }
    if cfg.TEST.AUG.ENABLED:
        faults["TEST.AUG.ENABLED"] = (
            "TEST.AUG.ENABLED is True (default False); no model here reads it, semantic "
            "segmentation has TEST.SCALES and TEST.FLIP"
        )
    idle = [key for key in OF_REFINED_HEAD if key in changed]
    head = cfg.MODEL.SEM_SEG_HEAD.NAME
    if idle and head in ("SemSegFPNHead", "SegFixHead"):
        logger.warning("%s: set, but %s has no refined prediction", ", ".join(idle), head)
    if faults:
        raise ValueError(
            "The config sets keys that nothing reads:\n  "
            + "\n  ".join(faults.values())
            + "\nLeave them out, or choose what reads them."
        )
