"""TEST.SEGFIX: a trained SegFix that refines another model's results."""

import functools
from pathlib import Path

from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.config_files import options_of
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.segfix import RefinedModel

from .config_files import load_config
from .setup import complete_config
from .trained_model import build_trained_model, check_trained_weights


def segfix_config(cfg: CfgNode) -> CfgNode | None:
    """
    Return the completed config of the SegFix that TEST.SEGFIX of a model's config names, or None.

    It has the device of the model's config.
    """
    named = cfg.TEST.SEGFIX
    if not named.WEIGHTS:
        return None
    file = named.CONFIG_FILE or str(Path(named.WEIGHTS).with_name(CONFIG))
    if not Path(file).is_file():
        raise MissingFileError(
            f"TEST.SEGFIX.WEIGHTS is {named.WEIGHTS}, its config {file}: no such file. Set "
            "TEST.SEGFIX.CONFIG_FILE to the config of that SegFix."
        )
    return _segfix_config(file, named.WEIGHTS, cfg.MODEL.DEVICE, cfg.MODEL.TRUST_PICKLE)


@functools.cache
def _segfix_config(file: str, weights: str, device: str, trust_pickle: bool) -> CfgNode:
    check_trained_weights(weights)
    keys = {"MODEL.WEIGHTS": weights, "MODEL.DEVICE": device, "MODEL.TRUST_PICKLE": trust_pickle}
    return load_segfix_config(file, options_of(keys))


def load_segfix_config(file: str, opts: list[str]) -> CfgNode:
    """
    Return a completed and frozen config of SegFix with KEY VALUE ... applied.

    Its data sets need not exist.
    """
    cfg = load_config(file, opts)
    if cfg.MODEL.META_ARCHITECTURE != "SegFix":
        raise UserError(
            f"{file}: MODEL.META_ARCHITECTURE is {cfg.MODEL.META_ARCHITECTURE}; offsets come from "
            "SegFix. Name a config in configs/SegFix, or the config.yaml of its run."
        )
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = ()
    complete_config(cfg)
    cfg.freeze()
    return cfg


def refined_by_segfix(cfg: CfgNode, model: nn.Module) -> nn.Module:
    """
    Return the model, refined (:class:`.RefinedModel`) if TEST.SEGFIX.WEIGHTS is set.

    Args:
        cfg: completed config of the model.
        model: an :class:`.InferenceModel`.
    """
    segfix_cfg = segfix_config(cfg)
    if segfix_cfg is None:
        return model
    return RefinedModel(model, build_trained_model(segfix_cfg), cfg.TEST.SEGFIX.SCALE)
