"""Values that a config cannot have, told before anything is read or built."""

import math
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.modeling import BACKBONE_REGISTRY, SEM_SEG_HEADS_REGISTRY

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
}
MEANING_OF_0 = {
    "SOLVER.CHECKPOINT_PERIOD": "0 saves at the end alone",
    "SOLVER.CHECKPOINTS_TO_KEEP": "0 keeps all",
    "TEST.EVAL_PERIOD": "0 evaluates at the end alone",
    "DATALOADER.NUM_WORKERS": "0 loads images in the training's own process",
}
ONE_OF = {
    "SOLVER.LR_SCHEDULER_NAME": (
        "WarmupMultiStepLR",
        "WarmupCosineLR",
        "WarmupStepWithFixedGammaLR",
        "WarmupPolyLR",
    ),
    "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": ("value", "norm"),
    "DATALOADER.SAMPLER_TRAIN": (
        "TrainingSampler",
        "RepeatFactorTrainingSampler",
        "RandomSubsetTrainingSampler",
        "WeightedTrainingSampler",
        "WeightedCategoryTrainingSampler",
    ),
    "MODEL.RESNETS.DEPTH": (18, 34, 50, 101, 152),
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
            raise ValueError(f"{key} is {value}; it is a number of at least {least}{zero}.")
    for key, names in ONE_OF.items():
        _check_choice(key, _value(cfg, key), names)
    for key, registry in REGISTERED.items():
        _check_choice(key, _value(cfg, key), [name for name, _ in registry])
    _check_norms(cfg, "")
    steps = list(cfg.SOLVER.STEPS)
    if steps != sorted(steps) or any(step < 0 for step in steps):
        raise ValueError(f"SOLVER.STEPS is {cfg.SOLVER.STEPS}; it is a tuple of rising iterations.")
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
        raise ValueError(f"{key} is {value}; it is one of {', '.join(map(str, choices))}.")


def _check_norms(node: CfgNode, prefix: str) -> None:
    for key, value in node.items():
        if isinstance(value, CfgNode):
            _check_norms(value, f"{prefix}{key}.")
        elif key == "NORM" and value not in NORMS:
            names = ", ".join(name or '""' for name in NORMS)
            raise ValueError(f"{prefix}{key} is {value}; it is one of {names}.")


def _check_device(name: str) -> None:
    try:
        torch.device(name)
    except RuntimeError as e:
        raise ValueError(
            f"MODEL.DEVICE is {name}, which torch does not know: it is auto, cpu, or cuda."
        ) from e
