"""Find the config and the weights of a trained model, and build it for inference."""

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from detectron2.config import CfgNode
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.checkpoint.addresses import is_model, model_hint
from ocr_panoptic.checkpoint.checkpointer import SafeCheckpointer, last_checkpoint
from ocr_panoptic.checkpoint.class_rows import ZOO_WEIGHTS
from ocr_panoptic.checkpoint.matching import Demands
from ocr_panoptic.checkpoint.settings import check_settings
from ocr_panoptic.checkpoint.start import Resume, Start, find_start, read_start
from ocr_panoptic.config.files import (
    SUFFIX,
    are_weights,
    config_path,
    load_config,
    overrides_of,
)
from ocr_panoptic.data.data_file import DataFile, data_options
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import path_argument
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.modeling.inference_model import InferenceModel, deploy

from .complete import complete_config
from .identity import check_classes_of, check_settings_of, register_classes
from .onnx_network import SUFFIX as SUFFIX_OF_ONNX
from .onnx_network import OnnxNetwork, find_onnx_model
from .run_info import inference_precision, weights_sha256
from .task import task_of


class TrainedModel(NamedTuple):
    """The config of a trained model, and the facts about its weights."""

    cfg: CfgNode
    start: Start


def find_model(
    run: str | PathLike,
    weights: str | PathLike | None = None,
    overrides: Mapping[str, Any] | Sequence[Any] = (),
    resume: Resume = False,
) -> TrainedModel:
    """
    Find the config and the weights of a trained model that a user has named.

    Args:
        run: a run's folder, a config, a file of trained weights, or the name of a model; "" to use
            only ``weights``.
        weights: file of trained weights, or name of a model; None for the last checkpoint in the
            run's folder, the weights that the config names, or the published weights of a
            model-zoo config.
        overrides: values of config keys, as for :func:`.load_config`.
        resume: whether to take the last checkpoint in the config's OUTPUT_DIR instead.

    Returns:
        the model with its config, which lacks the values that depend on the data
    """
    keys = overrides_of(overrides)
    if weights is not None:
        weights = path_argument("weights", weights)
    run = path_argument("run", run) if str(run) or not weights else ""
    if not weights and (are_weights(run) or _names_model(run)):
        run, weights = "", run
    if weights and weights.endswith(SUFFIX_OF_ONNX):
        if run:
            raise UserError(
                f"{weights} contains its own settings. Name it without {run} (--config-file)."
            )
        return TrainedModel(*find_onnx_model(weights, {**keys, "MODEL.WEIGHTS": repr(weights)}))
    if not weights and "MODEL.WEIGHTS" not in keys:
        weights = ZOO_WEIGHTS.get(run.removeprefix("configs/").removesuffix(SUFFIX))
    if run and Path(run).is_dir():
        keys = {"OUTPUT_DIR": repr(run), **keys}
        if not (weights := weights or last_checkpoint(run)):
            raise MissingFileError(
                f"{run} has no complete checkpoint (model_*.pth) of its last training. Name "
                "weights (--weights), or continue the training (--resume)."
            )
    if weights:
        keys = {"MODEL.WEIGHTS": repr(weights), **keys}
    if not run:  # the weights hold the settings of their training
        trusted = str(keys.get("MODEL.TRUST_PICKLE")) == "True"
        start = read_start(str(weights), trust_pickle=trusted)
        if start.settings is None:
            raise UserError(
                f"{weights} does not contain the settings of its training. Also name its config "
                "(--config-file)."
            )
        # The OUTPUT_DIR of the training may not exist on this machine.
        return TrainedModel(
            load_config("", {"OUTPUT_DIR": "output", **keys}, start.settings), start
        )
    cfg = load_config(run, keys)
    start = find_start(cfg, resume)
    cfg.MODEL.WEIGHTS = start.weights
    return TrainedModel(cfg, start)


def _names_model(run: str) -> bool:
    """Return whether ``run`` is or resembles a model's name, and is neither a run nor a config."""
    is_run = os.path.exists(os.path.join(run, CONFIG)) or os.path.isfile(run)
    is_other = is_run or config_path(run).is_file()
    return not is_other and (is_model(run) or bool(model_hint(run)))


def check_trained_weights(weights: str) -> None:
    """Refuse an empty ``weights``."""
    if not weights:
        raise UserError(
            "MODEL.WEIGHTS is empty, but inference needs trained weights. "
            "Set it to a checkpoint, such as OUTPUT_DIR/model_final.pth."
        )


def trained_model(
    run: str | PathLike,
    weights: str | PathLike | None = None,
    overrides: Mapping[str, Any] | Sequence[Any] = (),
    *,
    files: Sequence[DataFile] = (),
    needs_data: bool = False,
) -> TrainedModel:
    """
    Find a trained model as :func:`find_model` does, and complete its config.

    Args:
        run, weights, overrides: as for :func:`find_model`.
        files: data files that replace the config's data sets.
        needs_data: whether to keep the config's data sets. Otherwise, unless ``files`` or
            ``overrides`` name data sets, the classes come from the weights, and no data sets are
            needed.
    """
    keys = {**data_options(files), **overrides_of(overrides)}
    cfg, start = find_model(run, weights, keys)
    needs_data |= any(key.startswith("DATASETS.") for key in keys)
    if start.classes and not needs_data:
        cfg.DATASETS.FILES = cfg.DATASETS.TRAIN = ()
        cfg.DATASETS.TEST = (register_classes(start),)
    complete_config(cfg, start=start, files=files)
    return TrainedModel(cfg, start)


def check_inference_keys(cfg: CfgNode) -> None:
    """Refuse a TEST.PRECISION that the device or TEST.OPTIMIZED does not allow."""
    precision, device = cfg.TEST.PRECISION, cfg.MODEL.DEVICE
    if precision == "float16" and not device.startswith("cuda"):
        raise UserError(
            f"TEST.PRECISION float16 needs a GPU, but MODEL.DEVICE is {device}. Set TEST.PRECISION "
            "auto."
        )
    if precision not in ("auto", "float32") and not cfg.TEST.OPTIMIZED:
        raise UserError(f"TEST.PRECISION is {precision}, which needs TEST.OPTIMIZED True.")


def deployed(cfg: CfgNode, model: nn.Module, **options: Any) -> InferenceModel:
    """
    Return a model prepared for inference, as TEST.OPTIMIZED and TEST.PRECISION specify.

    ``options`` are arguments of :class:`.InferenceModel`, such as ``confident``.
    """
    check_inference_keys(cfg)
    return deploy(model, inference_precision(cfg), optimize=cfg.TEST.OPTIMIZED, **options)


def build_trained_model(cfg: CfgNode, start: Start | None = None) -> InferenceModel:
    """
    Build the model of a completed config for inference, with MODEL.WEIGHTS on MODEL.DEVICE.

    Args:
        start: MODEL.WEIGHTS, if they have been read already.

    Raises:
        ValueError: the weights do not fit the model, or were trained with other settings or
            classes.
    """
    check_trained_weights(cfg.MODEL.WEIGHTS)
    if start is None:
        start = read_start(cfg.MODEL.WEIGHTS, trust_pickle=cfg.MODEL.TRUST_PICKLE)
    check_settings_of(start, cfg)
    if task_of(cfg).has_classes:
        check_classes_of(start, cfg.DATASETS.TEST)
    if cfg.MODEL.WEIGHTS.endswith(SUFFIX_OF_ONNX):
        made_of = hashlib.sha256(Path(cfg.MODEL.WEIGHTS).read_bytes()).hexdigest()
        return InferenceModel(OnnxNetwork(cfg.MODEL.WEIGHTS, cfg.INPUT.FORMAT), made_of=made_of)
    model = build_model(cfg)
    checkpointer = SafeCheckpointer(
        model, trust_pickle=cfg.MODEL.TRUST_PICKLE, demands=Demands(strict=True)
    )
    checkpointer.load(cfg.MODEL.WEIGHTS, checkpointables=[], content=start.take_content())
    if checkpointer.loaded:
        check_settings(cfg, checkpointer.loaded.record, strict=True)
    logging.getLogger(__name__).info("%s", checkpointer.summary())
    return deployed(cfg, model.eval(), made_of=weights_sha256(model))
