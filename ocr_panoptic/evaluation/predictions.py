"""Reads predictions from a model's output, and writes them with the data set's original ids."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np
import torch
from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import ids_by_class, write_panoptic_png
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.formats.labels import COLOURED, write_label_png

logger = logging.getLogger(__name__)

SEMANTIC, PANOPTIC = "sem_seg_predictions", "panoptic_predictions"


def labels_of_output(output: Mapping, num_classes: int) -> np.ndarray:
    """
    Return the labels that a model predicts for an image, integers [H, W] in 0..K-1.

    Args:
        output: mapping with "labels", integers [H, W], or "sem_seg", scores [K, H, W].
        num_classes: number of classes, K.
    """
    if "labels" in output:
        labels = output["labels"].to(torch.int16).cpu().numpy()  # a quarter of the bytes to copy
    else:
        if (predicted := len(output["sem_seg"])) < num_classes:
            raise UserError(
                f"The model predicts {predicted} classes, but the data set has {num_classes} "
                f"semantic classes. Set MODEL.SEM_SEG_HEAD.NUM_CLASSES to {num_classes}."
            )
        labels = output["sem_seg"].float().cpu().numpy().argmax(axis=0)  # the lowest class in a tie
    # Narrow integers are several times faster to compare.
    return labels.astype(np.min_scalar_type(num_classes - 1), copy=False)


class SemSegDump(DatasetEvaluator):
    """
    An evaluator that writes ``sem_seg_predictions/<stem of the image's file>.png`` for every image.

    The PNGs hold the raw labels of the data set's own files. For Cityscapes, these are label ids,
    and the PNGs have the names that the benchmark server expects. The ground truth is not read.

    Args:
        dataset_name: a registered data set.
        folder: folder in which ``sem_seg_predictions`` is created.
    """

    def __init__(self, dataset_name: str, folder: str | os.PathLike):
        metadata = MetadataCatalog.get(dataset_name)
        self._folder = Path(folder) / SEMANTIC
        self._raw_labels = raw_labels(metadata.stuff_classes, metadata.get("label_map"))
        self._png_of = png_names(dataset_name)

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        for input_, output in zip(inputs, outputs, strict=True):
            labels = labels_of_output(output, len(self._raw_labels))
            png = self._png_of[input_["file_name"]]
            write_label_png(self._folder / png, self._raw_labels[labels])

    def evaluate(self) -> None:
        logger.info("Wrote semantic predictions to %s", self._folder)


def with_dataset_ids(segments: list[dict], metadata: Metadata) -> list[dict]:
    """Return each segment's "id", and its "category_id" converted to the data set's category id."""
    ids = ids_by_class(metadata, "stuff"), ids_by_class(metadata, "thing")
    return [
        {"id": s["id"], "category_id": ids[bool(s["isthing"])][s["category_id"]]} for s in segments
    ]


class PanopticDump(DatasetEvaluator):
    """
    An evaluator that writes panoptic predictions in the format of panopticapi.

    It writes ``panoptic_predictions/<stem of the image's file>.png`` and
    ``panoptic_predictions.json`` into a folder that all processes must share. The files can be
    evaluated with ``python -m panopticapi.evaluation``.
    """

    def __init__(self, dataset_name: str, folder: str | os.PathLike):
        self._folder = Path(folder)
        self._metadata = MetadataCatalog.get(dataset_name)
        self._png_of = png_names(dataset_name)
        self.reset()

    def reset(self) -> None:
        self._annotations: list[dict] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        for input_, output in zip(inputs, outputs, strict=True):
            ids, segments = output["panoptic_seg"]
            ids, png = ids.cpu().numpy(), self._png_of[input_["file_name"]]
            write_panoptic_png(self._folder / PANOPTIC / png, ids)
            shown = set(np.unique(ids).tolist())  # panopticapi refuses segments without a pixel
            segments = [s for s in with_dataset_ids(segments, self._metadata) if s["id"] in shown]
            annotation = {"image_id": input_["image_id"], "file_name": png}
            self._annotations.append({**annotation, "segments_info": segments})

    def evaluate(self) -> None:
        gathered = comm.gather(self._annotations)
        if comm.is_main_process():
            annotations = {"annotations": [*chain.from_iterable(gathered)]}
            write_text(self._folder / f"{PANOPTIC}.json", json.dumps(annotations))
            logger.info("Wrote panoptic predictions to %s", self._folder / PANOPTIC)


def png_names(dataset_name: str) -> dict[str, str]:
    """Return a mapping from each image's ``file_name`` to the file name of its prediction's PNG."""
    images: dict[str, str] = {}
    for record in DatasetCatalog.get(dataset_name):
        file_name = record["file_name"]
        other = images.setdefault(f"{Path(file_name).stem}.png", file_name)
        if other != file_name:
            raise UserError(
                "TEST.SAVE_PREDICTIONS names each prediction after its image, without folder and "
                f"suffix, so those of {other} and {file_name} in {dataset_name!r} would have the "
                "same name. Rename one of these images."
            )
    return {file_name: png for png, file_name in images.items()}


def raw_labels(class_names: Sequence[str], label_map: Mapping[int, int] | None) -> np.ndarray:
    """
    Return the raw label of each class in the data set's label files, unsigned integers [K].

    If a class has several raw labels, the lowest is returned. A class that the data set lacks gets
    a label that no class has. If the files mark all classes by colours instead of numbers, the
    training labels 0..K-1 are returned.

    Args:
        class_names: names of the K classes.
        label_map: mapping from raw labels to classes or the ignored label; None = identity.
    """
    label_map = label_map or {}
    numbers = {raw: label for raw, label in label_map.items() if raw < COLOURED}
    lowest = {numbers[raw]: raw for raw in sorted(numbers, reverse=True)}
    classes = range(len(class_names))
    if not lowest.keys() & {*classes}:
        lowest = {k: k for k in classes}
    free = (number for number in count() if number not in numbers)
    lowest = {k: next(free) for k in classes if k not in {*label_map.values()}} | lowest
    if missing := [name for k, name in enumerate(class_names) if k not in lowest]:
        raise UserError(
            f"Some classes have label numbers, but these have none: {', '.join(missing)}. In the "
            "data file, give a number (labels) to every class, or only colours."
        )
    labels = [lowest[k] for k in classes]
    return np.array(labels, dtype=np.min_scalar_type(max(labels)))
