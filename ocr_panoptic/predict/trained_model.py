"""Build a trained model for inference from a run, a config or weights."""

import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.checkpoint.checkpointer import SafeCheckpointer, last_checkpoint
from ocr_panoptic.checkpoint.class_rows import ZOO_WEIGHTS
from ocr_panoptic.checkpoint.reading import fetch_weights
from ocr_panoptic.checkpoint.settings import check_settings
from ocr_panoptic.config.files import are_weights, options_of
from ocr_panoptic.config.names import SUFFIX
from ocr_panoptic.config.unread import load_config
from ocr_panoptic.engine.setup import complete_config
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import path_argument
from ocr_panoptic.modeling.build import build_model
from ocr_panoptic.modeling.inference_model import InferenceModel, deploy

from .identity import check_classes_of, check_settings_of, read_identity, register_classes
from .run_info import inference_precision, weights_sha256
from .task import task_of


def check_trained_weights(weights: str) -> None:
    """Refuse an empty ``weights``, and a file that does not exist."""
    if not weights:
        raise UserError(
            "MODEL.WEIGHTS is empty, but inference needs trained weights. "
            "Set it to a checkpoint, such as OUTPUT_DIR/model_final.pth."
        )
    fetch_weights(weights)


def check_inference_keys(cfg: CfgNode) -> None:
    """Refuse a TEST.PRECISION that the device or TEST.OPTIMIZED does not allow."""
    precision, device = cfg.TEST.PRECISION, cfg.MODEL.DEVICE
    if precision == "float16" and not device.startswith("cuda"):
        raise UserError(f"TEST.PRECISION float16 needs a GPU, and MODEL.DEVICE is {device}.")
    if precision not in ("auto", "float32") and not cfg.TEST.OPTIMIZED:
        raise UserError(f"TEST.PRECISION {precision} needs TEST.OPTIMIZED True.")


def deployed(cfg: CfgNode, model: nn.Module, **options: Any) -> InferenceModel:
    """
    Return a model prepared for inference, as TEST.OPTIMIZED and TEST.PRECISION specify.

    ``options`` are arguments of :class:`.InferenceModel`, such as ``confident``.
    """
    check_inference_keys(cfg)
    return deploy(model, inference_precision(cfg), optimize=cfg.TEST.OPTIMIZED, **options)


def build_trained_model(cfg: CfgNode) -> InferenceModel:
    """
    Build the model of a completed config for inference, with MODEL.WEIGHTS on MODEL.DEVICE.

    Raises:
        ValueError: the weights do not fit the model, or were trained with other settings or
            classes.
    """
    check_trained_weights(cfg.MODEL.WEIGHTS)
    identity = read_identity(cfg.MODEL.WEIGHTS, trust_pickle=cfg.MODEL.TRUST_PICKLE)
    check_settings_of(identity, cfg)
    if task_of(cfg).has_classes:
        check_classes_of(identity, cfg.DATASETS.TEST)
    model = build_model(cfg)
    checkpointer = SafeCheckpointer(
        model, cfg.OUTPUT_DIR, trust_pickle=cfg.MODEL.TRUST_PICKLE, strict=True
    )
    checkpointer.load(cfg.MODEL.WEIGHTS, checkpointables=[])
    check_settings(cfg, checkpointer.record, strict=True)
    logging.getLogger(__name__).info("%s", checkpointer.summary())
    return deployed(cfg, model.eval(), made_of=weights_sha256(model))


def resolve_model(
    run: str | PathLike, weights: str | PathLike | None, opts: Sequence[str] = ()
) -> tuple[str, list[str], Mapping[str, Any] | None]:
    """
    Find the config and the weights of a trained model that a user has named.

    Args:
        run: a run's folder, a config, or a file of trained weights; "" to use only ``weights``.
        weights: file of trained weights; None for the last checkpoint in the run's folder, the
            weights that the config names, or the published weights of a model-zoo config.
        opts: overrides KEY VALUE ...; only MODEL.TRUST_PICKLE and MODEL.WEIGHTS are read.

    Returns:
        - the run's folder or the config; "" if the user has named only weights
        - overrides, [KEY, VALUE, ...], for the weights and OUTPUT_DIR
        - the settings stored in the weights; None if the user has named a folder or a config
    """
    if weights is not None:
        weights = path_argument("weights", weights)
    run = path_argument("run", run) if str(run) or not weights else ""
    keys, words = {}, list(map(str, opts))
    trusted = dict(zip(words[::2], words[1::2])).get("MODEL.TRUST_PICKLE") == "True"
    if not weights and are_weights(run):
        run, weights = "", run
    if not weights and "MODEL.WEIGHTS" not in words[::2]:
        weights = ZOO_WEIGHTS.get(run.removeprefix("configs/").removesuffix(SUFFIX))
    if run and Path(run).is_dir():
        keys["OUTPUT_DIR"] = run
        if not (weights := weights or last_checkpoint(run)):
            raise MissingFileError(
                f"{run} has no whole checkpoint (model_*.pth) of its last training. Name the "
                "weights, or go on with the training."
            )
    settings = None
    if weights:
        keys["MODEL.WEIGHTS"] = str(weights)
        check_trained_weights(str(weights))
    if not run:
        if (identity := read_identity(str(weights), trust_pickle=trusted)) is None:
            raise UserError(
                f"{weights} does not hold the settings that it was trained with: also name its "
                "config (--config-file)."
            )
        # The training's device and OUTPUT_DIR may not exist on this machine.
        settings = {**identity.settings, "MODEL.DEVICE": "auto", "OUTPUT_DIR": "output"}
    return run, options_of(keys), settings


def trained_config(
    run: str | PathLike,
    weights: str | PathLike | None,
    opts: Sequence[str] = (),
    *,
    needs_data: bool = False,
) -> CfgNode:
    """
    Return the completed config of a trained model.

    Args:
        run: a run's folder, a config, or a file of trained weights; "" to use only ``weights``.
        weights: file of trained weights; None for the last checkpoint in the run's folder, or the
            config's weights.
        opts: overrides KEY VALUE ... for the config.
        needs_data: whether to keep the config's data sets. Otherwise, unless ``opts`` name data
            sets, the classes come from the weights, and no data sets are needed.
    """
    config, names, settings = resolve_model(run, weights, opts)
    cfg = load_config(config, [*names, *opts], settings=settings)
    identity = read_identity(cfg.MODEL.WEIGHTS, trust_pickle=cfg.MODEL.TRUST_PICKLE)
    needs_data |= any(str(key).startswith("DATASETS.") for key in opts[::2])
    if identity and identity.classes and not needs_data:
        cfg.DATASETS.FILES = cfg.DATASETS.TRAIN = ()
        cfg.DATASETS.TEST = (register_classes(identity),)
    complete_config(cfg)
    return cfg


def predicting_config(
    run: str | PathLike, weights: str | PathLike | None, opts: Sequence[str] = ()
) -> CfgNode:
    """
    Return the completed config of a trained model for prediction.

    If TEST.PRECISION is "float32" and ``opts`` do not set this key, its value becomes "auto".

    Args:
        run: a run's folder, a config, or a file of trained weights; "" to use only ``weights``.
        weights: file of trained weights; None for the last checkpoint in the run's folder, or the
            config's weights.
        opts: overrides KEY VALUE ... for the config.
    """
    cfg = trained_config(run, weights, opts)
    if cfg.TEST.PRECISION == "float32" and "TEST.PRECISION" not in opts[::2]:
        cfg.TEST.PRECISION = "auto"
    return cfg
