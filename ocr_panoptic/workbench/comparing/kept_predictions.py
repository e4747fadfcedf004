"""Predictions of a panoptic model, kept so that merges can be replayed on them."""

from typing import NamedTuple

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.evaluation import DatasetEvaluator, inference_on_dataset

from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.engine.trainer import Trainer
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.panoptic_truth import PanopticTruth

from .merge_replay import KeptImage, keep_image


class KeptPredictions(NamedTuple):
    """
    The predictions for a data set of T thing classes, L semantic labels and C categories.

    Attributes:
        images: images in the order of the data set.
        categories: position among the C categories for each thing class, then for each semantic
            label, int64 [T + L]; -1 for the label that stands for things.
        things: number T of thing classes.
        num_categories: number C of categories.
    """

    images: list[KeptImage]
    categories: np.ndarray
    things: int
    num_categories: int


def kept_predictions(cfg: CfgNode) -> KeptPredictions:
    """Predict DATASETS.TEST[0] by a completed config's model with its trained MODEL.WEIGHTS."""
    name = cfg.DATASETS.TEST[0] if cfg.DATASETS.TEST else ""
    if cfg.MODEL.META_ARCHITECTURE != "PanopticFPN":
        raise UserError(
            f"MODEL.META_ARCHITECTURE is {cfg.MODEL.META_ARCHITECTURE}; only a PanopticFPN has a "
            "merge to fit"
        )
    if not name or not MetadataCatalog.get(name).get("panoptic_json"):
        raise UserError(
            f"{name or 'DATASETS.TEST'} has no panoptic truth to fit a merge to; set DATASETS.TEST "
            "to a validation split with annotations"
        )
    metadata = MetadataCatalog.get(name)
    truth = PanopticTruth(metadata)
    keeper = _Keeper(truth)
    inference_on_dataset(build_trained_model(cfg), Trainer.build_test_loader(cfg, name), keeper)
    position = {category["id"]: i for i, category in enumerate(truth.categories)}
    positions = []
    things, labels = cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    for kind, count in (("thing", things), ("stuff", labels)):
        ids = metadata.get(f"{kind}_dataset_id_to_contiguous_id")
        of_class = {contiguous: position.get(category, -1) for category, contiguous in ids.items()}
        positions += [of_class.get(i, -1) for i in range(count)]
    return KeptPredictions(keeper.images, np.array(positions), things, len(truth.categories))


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
