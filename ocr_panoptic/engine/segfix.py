"""TEST.SEGFIX: a trained SegFix that refines what a model predicts."""

import functools
from pathlib import Path

from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.segfix.refinement import RefinedModel

from .config_files import load_config, options_of
from .resume import check_trained_weights
from .setup import complete_config
from .trained_model import build_trained_model

ARCHITECTURE = "SegFix"


def segfix_config(cfg: CfgNode) -> CfgNode | None:
    """Return the completed config of the SegFix that a model's config names, for the same device;
    None where it names none."""
    named = cfg.TEST.SEGFIX
    if not named.WEIGHTS:
        return None
    file = named.CONFIG_FILE or str(Path(named.WEIGHTS).with_name(CONFIG))
    if not Path(file).is_file():
        raise MissingFileError(
            f"TEST.SEGFIX.WEIGHTS is {named.WEIGHTS}, its config {file}: no such file. Set "
            "TEST.SEGFIX.CONFIG_FILE to the config of that SegFix."
        )
    found = _segfix_config(file, named.WEIGHTS, cfg.MODEL.DEVICE, cfg.MODEL.TRUST_PICKLE)
    if found.INPUT.CHANNELS != cfg.INPUT.CHANNELS:
        raise UserError(
            f"{file}: INPUT.CHANNELS is {found.INPUT.CHANNELS}, and that of the model which this "
            f"SegFix is to refine {cfg.INPUT.CHANNELS}; both see the same images."
        )
    return found


@functools.cache
def _segfix_config(file: str, weights: str, device: str, trust_pickle: bool) -> CfgNode:
    check_trained_weights(weights)
    keys = {"MODEL.WEIGHTS": weights, "MODEL.DEVICE": device, "MODEL.TRUST_PICKLE": trust_pickle}
    return load_segfix_config(file, options_of(keys))


def load_segfix_config(file: str, opts: list[str]) -> CfgNode:
    """Return a config of SegFix, completed and frozen, with KEY VALUE ... applied. Its data sets
    need not be there."""
    cfg = load_config(file, opts)
    if cfg.MODEL.META_ARCHITECTURE != ARCHITECTURE:
        raise UserError(
            f"{file}: MODEL.META_ARCHITECTURE is {cfg.MODEL.META_ARCHITECTURE}; offsets come from "
            f"{ARCHITECTURE}. Name a config of configs/SegFix, or the config.yaml of its run."
        )
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = ()
    complete_config(cfg)
    cfg.freeze()
    return cfg


def refined_by_segfix(cfg: CfgNode, model: nn.Module) -> nn.Module:
    """Return a :class:`.RefinedModel` of an :class:`.InferenceModel` where TEST.SEGFIX.WEIGHTS of
    its completed config names a SegFix, else the model."""
    segfix_cfg = segfix_config(cfg)
    if segfix_cfg is None:
        return model
    return RefinedModel(model, build_trained_model(segfix_cfg), cfg.TEST.SEGFIX.SCALE)
