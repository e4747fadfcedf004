"""The predictions of a panoptic model from which merges are replayed, kept in a file."""

import hashlib
import json
import logging
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.evaluation import DatasetEvaluator, inference_on_dataset

from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.engine.trainer import Trainer
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import PanopticTruth
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.modeling.inference_model import InferenceModel
from ocr_panoptic.workbench.comparing.merge_replay import KeptImage, keep_image

FILE = "kept_predictions.npz"
MADE_OF = "made_of"

logger = logging.getLogger(__name__)


class KeptPredictions(NamedTuple):
    """
    Attributes:
        images: in the order of the data set.
        categories: int64 [T + L], the category of each thing class and of each semantic label as a
            position among those of the data set; -1 for the label of things.
        things: T.
        num_categories: C.
    """

    images: list[KeptImage]
    categories: np.ndarray
    things: int
    num_categories: int


def kept_predictions(cfg: CfgNode, folder: str | PathLike) -> KeptPredictions:
    """
    Read what was kept of the model, its settings and the data set, or predict DATASETS.TEST[0] and
    keep it in ``folder``.

    Args:
        cfg: completed; MODEL.WEIGHTS are the trained ones.

    Raises:
        FileNotFoundError: weights or truth are missing.
        ValueError: the model or the data set is not panoptic, or the weights do not fit.
    """
    name = cfg.DATASETS.TEST[0] if cfg.DATASETS.TEST else ""
    if cfg.MODEL.META_ARCHITECTURE != "PanopticFPN":
        raise UserError(
            f"MODEL.META_ARCHITECTURE is {cfg.MODEL.META_ARCHITECTURE}; a merge is fitted to a "
            "trained PanopticFPN"
        )
    if not name or not MetadataCatalog.get(name).get("panoptic_json"):
        raise UserError(
            f"{name or 'DATASETS.TEST'} has no panoptic truth that a merge could be fitted to; "
            "name a validation split with annotations"
        )
    metadata = MetadataCatalog.get(name)
    truth = PanopticTruth(metadata)
    model = build_trained_model(cfg)
    made_of = _made_of(cfg, model, metadata.panoptic_json)
    file = Path(folder) / FILE
    if (images := _read(file, made_of)) is None:
        keeper = _Keeper(truth)
        inference_on_dataset(model, Trainer.build_test_loader(cfg, name), keeper)
        images = keeper.images
        _write(file, made_of, images)
    row = {category["id"]: i for i, category in enumerate(truth.categories)}
    rows = []
    for kind, count in (
        ("thing", cfg.MODEL.ROI_HEADS.NUM_CLASSES),
        ("stuff", cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES),
    ):
        ids = metadata.get(f"{kind}_dataset_id_to_contiguous_id")
        of_class = {contiguous: row.get(category, -1) for category, contiguous in ids.items()}
        rows += [of_class.get(i, -1) for i in range(count)]
    things = cfg.MODEL.ROI_HEADS.NUM_CLASSES
    return KeptPredictions(images, np.array(rows), things, len(truth.categories))


class _Keeper(DatasetEvaluator):
    def __init__(self, truth: PanopticTruth):
        self._truth = truth
        self._categories = [category["id"] for category in truth.categories]
        self.reset()

    def reset(self) -> None:
        self.images: list[KeptImage] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        for input_, output in zip(inputs, outputs, strict=True):
            truth, instances = self._truth[input_["image_id"]], output["instances"].to("cpu")
            instances = instances[torch.argsort(-instances.scores)]
            kept = keep_image(
                instances.scores.numpy(),
                instances.pred_classes.numpy(),
                instances.pred_masks.to(torch.bool).numpy(),
                output["labels"].cpu().numpy(),
                truth.ids,
                truth.segments,
                self._categories,
            )
            self.images.append(kept)


def _made_of(cfg: CfgNode, model: InferenceModel, panoptic_json: str) -> str:
    """Return what the predictions depend on: weights, config without the merge, truth."""
    settings = cfg.clone()
    settings.defrost()
    combine = settings.MODEL.PANOPTIC_FPN.pop("COMBINE")
    settings.OUTPUT_DIR = settings.MODEL.WEIGHTS = ""
    parts = [settings.dump(), combine.ENABLED, model.made_of]
    if Path(panoptic_json).is_file():
        file = Path(panoptic_json).stat()
        parts += [panoptic_json, file.st_size, file.st_mtime_ns]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(file: Path, made_of: str) -> list[KeptImage] | None:
    if not file.is_file():
        return None
    try:
        with np.load(file) as stored:
            if str(stored[MADE_OF]) != made_of:
                logger.info("%s is of another model, data set or settings: predicting anew", file)
                return None
            count = int(stored["count"])
            return [
                KeptImage(*(stored[f"{i}/{f}"] for f in KeptImage._fields)) for i in range(count)
            ]
    except Exception as error:  # NumPy and zipfile raise what the broken bytes lead to
        logger.warning("%s cannot be read (%s): predicting anew", file, error)
        return None


def _write(file: Path, made_of: str, images: list[KeptImage]) -> None:
    arrays: dict[str, Any] = {MADE_OF: np.array(made_of), "count": np.array(len(images))}
    for i, image in enumerate(images):
        arrays |= {f"{i}/{name}": array for name, array in image._asdict().items()}
    with replacing(file) as temporary, open(temporary, "wb") as target:
        np.savez_compressed(target, **arrays)
