"""A model with the weights that the config names, ready for inference."""

import logging
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.checkpoint.checkpointer import SafeCheckpointer
from ocr_panoptic.checkpoint.last import last_checkpoint
from ocr_panoptic.checkpoint.settings import check_settings
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.modeling.build import build_model
from ocr_panoptic.modeling.inference_model import InferenceModel, deploy

from .complete_config import complete_config
from .config_files import load_config, options_of
from .resume import check_trained_weights
from .run_info import weights_sha256


def check_inference_keys(cfg: CfgNode) -> None:
    """Refuse a TEST.PRECISION that does not go with the device or TEST.OPTIMIZED."""
    precision, device = cfg.TEST.PRECISION, cfg.MODEL.DEVICE
    if precision == "float32":
        return
    if precision == "float16" and not device.startswith("cuda"):
        raise UserError(
            f"TEST.PRECISION is 'float16', which needs a GPU, and MODEL.DEVICE is {device}; "
            "set 'bfloat16' or 'float32'"
        )
    if not cfg.TEST.OPTIMIZED:
        raise UserError(
            f"TEST.PRECISION is {precision!r} and TEST.OPTIMIZED False, a model as it is in "
            "training; set TEST.OPTIMIZED True, or TEST.PRECISION 'float32'"
        )


def deployed(cfg: CfgNode, model: nn.Module, **options: Any) -> InferenceModel:
    """Put a model to use as TEST.OPTIMIZED and TEST.PRECISION say, see :func:`.deploy`."""
    check_inference_keys(cfg)
    return deploy(model, cfg.TEST.PRECISION, optimize=cfg.TEST.OPTIMIZED, **options)


def build_trained_model(cfg: CfgNode) -> InferenceModel:
    """
    Return the model of a completed config on MODEL.DEVICE, with MODEL.WEIGHTS.

    Raises:
        ValueError: the weights do not fill the model, or were converted for other settings.
    """
    check_trained_weights(cfg.MODEL.WEIGHTS)
    model = build_model(cfg)
    checkpointer = SafeCheckpointer(
        model, cfg.OUTPUT_DIR, trust_pickle=cfg.MODEL.TRUST_PICKLE, strict=True
    )
    checkpointer.load(cfg.MODEL.WEIGHTS, checkpointables=[])
    check_settings(cfg, checkpointer.record, strict=True)
    logging.getLogger(__name__).info("%s", checkpointer.summary())
    return deployed(cfg, model.eval(), made_of=weights_sha256(model))


def options_of_run(source: str | PathLike, weights: str | PathLike | None) -> list[str]:
    """
    Return KEY VALUE ... for :func:`.load_config` of ``source``: weights and, of a folder,
    OUTPUT_DIR.

    Args:
        source: the folder of a run, or a config.
        weights: its trained model; None for the last checkpoint of the folder, or those that the
            config names.
    """
    folder = Path(source)
    if not folder.is_dir():
        return options_of({"MODEL.WEIGHTS": str(weights)} if weights else {})
    if not (weights := weights or last_checkpoint(folder)):
        raise MissingFileError(
            f"{folder} has no whole checkpoint (model_*.pth) of its last training. Train it to "
            "the end or to a checkpoint, or name the weights."
        )
    return options_of({"MODEL.WEIGHTS": str(weights), "OUTPUT_DIR": str(folder)})


def trained_config(
    source: str | PathLike, weights: str | PathLike | None, opts: Sequence[str] = ()
) -> CfgNode:
    """Return the completed config of a trained model, see :func:`options_of_run`."""
    cfg = load_config(str(source), [*options_of_run(source, weights), *opts])
    complete_config(cfg)
    return cfg
