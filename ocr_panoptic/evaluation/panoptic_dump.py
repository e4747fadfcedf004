"""Panoptic predictions on disk, in COCO's results format."""

import json
import logging
import os
from itertools import chain
from pathlib import Path

import numpy as np
from detectron2.data import Metadata, MetadataCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

from ocr_panoptic.formats.coco_panoptic import ids_by_class, write_panoptic_png
from ocr_panoptic.formats.files import write_text

from .sem_seg_predictions import png_names

logger = logging.getLogger(__name__)

NAME = "panoptic_predictions"


def with_dataset_ids(segments: list[dict], metadata: Metadata) -> list[dict]:
    """Return "id" and "category_id" of each segment, converted to the data set's category ids."""
    ids = ids_by_class(metadata, "stuff"), ids_by_class(metadata, "thing")
    return [
        {"id": s["id"], "category_id": ids[bool(s["isthing"])][s["category_id"]]} for s in segments
    ]


class PanopticDump(DatasetEvaluator):
    """
    An evaluator that writes panoptic predictions for panopticapi.

    It writes ``panoptic_predictions/<stem of the image's file>.png`` and
    ``panoptic_predictions.json`` into a folder that all processes must share.

    The ground truth is not read. ``python -m panopticapi.evaluation`` evaluates these files.
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
            write_panoptic_png(self._folder / NAME / png, ids)
            shown = set(np.unique(ids).tolist())  # panopticapi refuses segments without a pixel
            segments = [s for s in with_dataset_ids(segments, self._metadata) if s["id"] in shown]
            annotation = {"image_id": input_["image_id"], "file_name": png}
            self._annotations.append({**annotation, "segments_info": segments})

    def evaluate(self) -> None:
        gathered = comm.gather(self._annotations)
        if comm.is_main_process():
            annotations = {"annotations": [*chain.from_iterable(gathered)]}
            write_text(self._folder / f"{NAME}.json", json.dumps(annotations))
            logger.info("Panoptic predictions are in %s", self._folder / NAME)
