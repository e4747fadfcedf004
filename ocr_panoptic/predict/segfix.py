"""Add SegFix to ``TASKS``, the architectures, and to ``REFINERS`` of other models' results."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode
from detectron2.data import transforms as T

from ocr_panoptic.checkpoint.reading import fetch_weights
from ocr_panoptic.config.files import load_config, quoted
from ocr_panoptic.data.catalog import label_maps_of, registered_metadata
from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.metadata import PANOPTIC, SEMANTIC
from ocr_panoptic.data.semantic.augmentation import (
    build_offset_augmentation,
    build_semantic_augmentation,
)
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.segfix import OffsetEvaluator, RefinedModel
from ocr_panoptic.segfix.truth import OffsetTruth, read_segment_map, true_offset_labels

from .complete import complete_config
from .single_image import model_input
from .task import REFINERS, TASKS, Mapper, Refiner, Task
from .trained_model import build_trained_model


def segfix_config(cfg: CfgNode) -> CfgNode | None:
    """Return the completed config of the SegFix model that TEST.SEGFIX names, or None."""
    named = cfg.TEST.SEGFIX
    if not named.WEIGHTS:
        return None
    file = named.CONFIG_FILE or str(Path(named.WEIGHTS).with_name(CONFIG))
    if not Path(file).is_file():
        raise MissingFileError(
            f"The config {file} of TEST.SEGFIX.WEIGHTS {named.WEIGHTS} does not exist. Set "
            "TEST.SEGFIX.CONFIG_FILE to the config of that SegFix model."
        )
    return _segfix_config(file, named.WEIGHTS, cfg.MODEL.DEVICE, cfg.MODEL.TRUST_PICKLE)


@functools.cache
def _segfix_config(file: str, weights: str, device: str, trust_pickle: bool) -> CfgNode:
    fetch_weights(weights)  # a training would otherwise find a missing file after its end
    keys = {"MODEL.WEIGHTS": weights, "MODEL.DEVICE": device, "MODEL.TRUST_PICKLE": trust_pickle}
    return load_segfix_config(file, quoted(keys))


def load_segfix_config(file: str, overrides: Mapping[str, Any] | Sequence[Any]) -> CfgNode:
    """Load, complete and freeze a SegFix model's config; its data sets need not exist."""
    cfg = load_config(file, overrides)
    if cfg.MODEL.META_ARCHITECTURE != "SegFix":
        raise UserError(
            f"{file}: MODEL.META_ARCHITECTURE is {cfg.MODEL.META_ARCHITECTURE}; expected SegFix. "
            "Name a config in configs/SegFix, or the config.yaml of a SegFix run."
        )
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = ()
    complete_config(cfg)
    cfg.freeze()
    return cfg


def _check_segments(cfg: CfgNode, dataset: str) -> None:
    """Refuse a data set that has neither semantic nor panoptic labels."""
    if registered_metadata(dataset).get("evaluator_type") not in (SEMANTIC, PANOPTIC):
        raise UserError(
            f"SegFix needs semantic or panoptic labels, but {dataset} has neither. Name another "
            "data set."
        )


def _offset_mapper(cfg: CfgNode, is_train: bool) -> SemanticDatasetMapper:
    """Return a mapper that computes SegFix's offset labels; the data can have any classes."""
    distance = cfg.MODEL.SEGFIX.BOUNDARY_DISTANCE
    return SemanticDatasetMapper(
        is_train,
        augmentations=(
            build_offset_augmentation(cfg, OffsetTruth(distance))
            if is_train
            else build_semantic_augmentation(cfg, is_train=False)
        ),
        image_format=cfg.INPUT.FORMAT,
        channels=cfg.INPUT.CHANNELS,
        num_classes=VOID_LABEL,  # accepts every class
        label_maps=label_maps_of([*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST]),
        read_labels=read_segment_map,
        truth_of_file=functools.partial(true_offset_labels, boundary_distance=distance),
    )


TASKS["SegFix"] = Task(
    title="SegFix",
    mapper=_offset_mapper,
    complete_classes=_check_segments,
    classes=lambda cfg: (
        "regions of any classes; a boundary includes the pixels up to "
        f"{cfg.MODEL.SEGFIX.BOUNDARY_DISTANCE} pixels away on each side"
    ),
    test_augmentation=lambda cfg: T.AugmentationList(
        build_semantic_augmentation(cfg, is_train=False)
    ),
    evaluator=lambda cfg, dataset, folder: OffsetEvaluator(dataset),
    has_classes=False,
)


def _with_input(cfg: CfgNode, mapper: Mapper, record: dict) -> dict:
    image = read_picture(record["file_name"], cfg.INPUT.FORMAT, cfg.INPUT.CHANNELS)
    return {**mapper(record), "segfix": model_input(cfg, image)}


REFINERS["segfix"] = Refiner(
    segfix_config,
    lambda cfg, mapper: functools.partial(_with_input, cfg, mapper),
    lambda cfg, model: RefinedModel(
        model, build_trained_model(segfix_config(cfg)), cfg.TEST.SEGFIX.SCALE
    ),
)
