"""Values that a config cannot have, told before anything is read or built."""

import math
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.modeling import BACKBONE_REGISTRY, SEM_SEG_HEADS_REGISTRY

from ocr_panoptic.modeling.refined_head import COARSE_STARTS

# Least value of a key. Others of their sections are checked where they are used.
AT_LEAST = {
    "SOLVER.MAX_ITER": 1,
    "SOLVER.BASE_LR": 0,
    "SOLVER.BIAS_LR_FACTOR": 0,
    "SOLVER.MOMENTUM": 0,
    "SOLVER.WEIGHT_DECAY": 0,
    "SOLVER.WEIGHT_DECAY_NORM": 0,
    "SOLVER.WEIGHT_DECAY_BIAS": 0,
    "SOLVER.GAMMA": 0,
    "SOLVER.WARMUP_ITERS": 0,
    "SOLVER.WARMUP_FACTOR": 0,
    "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": 0,
    "SOLVER.CHECKPOINT_PERIOD": 0,
    "SOLVER.CHECKPOINTS_TO_KEEP": 0,
    "SOLVER.GATHER_METRIC_PERIOD": 1,
    "TEST.EVAL_PERIOD": 0,
    "DATALOADER.NUM_WORKERS": 0,
    "INPUT.CHANNELS": 1,
    "MODEL.OCR.CHANNELS": 1,
    "MODEL.OCR.KEY_CHANNELS": 1,
    "MODEL.TIMM.PATCH_SIZE": 0,
    "MODEL.SEGFIX.BOUNDARY_DISTANCE": 1,
    "MODEL.SEGFIX.CHANNELS": 1,
    "TEST.SEGFIX.SCALE": 1,
}
# Shares, with the ends that they may have.
SHARES = {
    "SOLVER.LAYER_DECAY": "(0, 1]",
    "MODEL.EMA.DECAY": "[0, 1)",
    "MODEL.TIMM.DROP_PATH": "[0, 1)",
}
MEANING_OF_0 = {
    "SOLVER.CHECKPOINT_PERIOD": "0 saves at the end alone",
    "SOLVER.CHECKPOINTS_TO_KEEP": "0 keeps all",
    "TEST.EVAL_PERIOD": "0 evaluates at the end alone",
    "MODEL.TIMM.PATCH_SIZE": "0 is that of its weights",
    "DATALOADER.NUM_WORKERS": "0 loads images in the training's own process",
}
ONE_OF = {
    "SOLVER.LR_SCHEDULER_NAME": (
        "WarmupMultiStepLR",
        "WarmupCosineLR",
        "WarmupStepWithFixedGammaLR",
        "WarmupPolyLR",
    ),
    "SOLVER.OPTIMIZER": ("SGD", "AdamW"),
    "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": ("value", "norm"),
    "DATALOADER.SAMPLER_TRAIN": (
        "TrainingSampler",
        "RepeatFactorTrainingSampler",
    ),
    "MODEL.OCR.COARSE_START": COARSE_STARTS,
    "MODEL.RESNETS.DEPTH": (18, 34, 50, 101, 152),
    # Others of Detectron2 and Pillow have another number of channels than the models.
    "INPUT.FORMAT": ("BGR", "RGB"),
    "INPUT.MIN_SIZE_TRAIN_SAMPLING": ("choice", "range"),
    # Detectron2's, which no data here have.
    "MODEL.LOAD_PROPOSALS": (False,),
    "MODEL.KEYPOINT_ON": (False,),
}
REGISTERED = {
    "MODEL.BACKBONE.NAME": BACKBONE_REGISTRY,
    "MODEL.SEM_SEG_HEAD.NAME": SEM_SEG_HEADS_REGISTRY,
}
# Of Detectron2's get_norm.
NORMS = ("", "BN", "SyncBN", "FrozenBN", "GN", "LN", "nnSyncBN", "naiveSyncBN", "naiveSyncBN_N")
MAX_SEED = 2**31 - 1  # NumPy's are below 2**32, and each process adds its rank


def check_values(cfg: CfgNode) -> None:
    """
    Raises:
        ValueError: naming key, value and what it may be.
    """
    for key, least in AT_LEAST.items():
        value = _value(cfg, key)
        if value is not None and not (least <= value < math.inf):  # NaN is neither
            zero = f" ({MEANING_OF_0[key]})" if key in MEANING_OF_0 else ""
            raise ValueError(f"{key} is {value!s:.200}; it is a number of at least {least}{zero}.")
    for key, ends in SHARES.items():
        value = _value(cfg, key)
        if not (0 < value < 1 or (value == 0 and "[0" in ends) or (value == 1 and "1]" in ends)):
            raise ValueError(f"{key} is {value!s:.200}; it is a number in {ends}.")
    for key, names in ONE_OF.items():
        _check_choice(key, _value(cfg, key), names)
    for key, registry in REGISTERED.items():
        _check_choice(key, _value(cfg, key), [name for name, _ in registry])
    _check_norms(cfg, "")
    sizes = cfg.INPUT.MIN_SIZE_TRAIN
    if not sizes or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError(
            f"INPUT.MIN_SIZE_TRAIN is {sizes!s:.200}; it is a tuple of at least one size in "
            "pixels, 0 for the image's own."
        )
    channels = cfg.INPUT.CHANNELS
    for key in ("PIXEL_MEAN", "PIXEL_STD"):
        if len(cfg.MODEL[key]) != channels:
            raise ValueError(
                f"MODEL.{key} is {cfg.MODEL[key]!s:.200}, {len(cfg.MODEL[key])} values, and "
                f"INPUT.CHANNELS is {channels}; each channel has one."
            )
    deviations = cfg.MODEL.PIXEL_STD
    if not all(_is_number(value) and 0 < value < math.inf for value in deviations):
        raise ValueError(
            f"MODEL.PIXEL_STD is {deviations!s:.200}; it is a list of numbers above 0."
        )
    if not 0 <= cfg.SOLVER.BASE_LR_END <= cfg.SOLVER.BASE_LR:
        raise ValueError(
            f"SOLVER.BASE_LR_END is {cfg.SOLVER.BASE_LR_END}; it is a number from 0 to "
            f"SOLVER.BASE_LR, {cfg.SOLVER.BASE_LR}."
        )
    steps = cfg.SOLVER.STEPS
    if not all(isinstance(step, int) and step >= 0 for step in steps) or [*steps] != sorted(steps):
        raise ValueError(
            f"SOLVER.STEPS is {cfg.SOLVER.STEPS!s:.200}; it is a tuple of rising iterations."
        )
    if cfg.SEED > MAX_SEED:
        raise ValueError(f"SEED is {cfg.SEED}; it is at most {MAX_SEED}, or -1 for a random one.")
    if cfg.MODEL.DEVICE != "auto":
        _check_device(cfg.MODEL.DEVICE)


def _value(cfg: CfgNode, key: str) -> Any:
    for part in key.split("."):
        cfg = cfg[part]
    return cfg


def _check_choice(key: str, value: object, choices: list | tuple) -> None:
    if value not in choices:
        one_of = "one of " if len(choices) > 1 else "to be "
        raise ValueError(f"{key} is {value!s:.200}; it is {one_of}{', '.join(map(str, choices))}.")


def _check_norms(node: CfgNode, prefix: str) -> None:
    for key, value in node.items():
        if isinstance(value, CfgNode):
            _check_norms(value, f"{prefix}{key}.")
        elif key == "NORM" and value not in NORMS:
            names = ", ".join(name or '""' for name in NORMS)
            raise ValueError(f"{prefix}{key} is {value!s:.200}; it is one of {names}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _check_device(name: str) -> None:
    try:
        is_one = torch.device(name).type != "meta"  # which has no values
    except RuntimeError:
        is_one = False
    if not is_one:
        raise ValueError(
            f"MODEL.DEVICE is {name:.200}, which is no device: it is auto, cpu, or cuda."
        )
