"""The true panoptic maps of a data set in COCO panoptic format, and true semantic labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.data import Metadata

from ocr_panoptic.label_map import read_labels
from ocr_panoptic.panoptic_png import read_panoptic_png
from ocr_panoptic.visualization.scene import Segments


def semantic_truth(record: dict[str, Any], metadata: Metadata) -> np.ndarray:
    """
    Args:
        record: of a semantic data set.
        metadata: with its label_map, if it has one.

    Returns:
        the true labels, uint8 or uint16 [H,W]

    Raises:
        ValueError: the record has no labels, or the PNG is broken or holds labels outside the map.
        FileNotFoundError: the PNG is missing.
    """
    if "sem_seg_file_name" not in record:
        raise ValueError(
            f"{record['file_name']} has no labels to show; name a data set with labels in "
            "DATASETS.TEST"
        )
    return read_labels(record["sem_seg_file_name"], metadata.get("label_map"))


class PanopticTruth:
    """The annotations of `metadata.panoptic_json`, by image id."""

    def __init__(self, metadata: Metadata):
        """
        Args:
            metadata: of a data set like Detectron2's `coco_2017_val_panoptic_separated`.

        Raises:
            FileNotFoundError: there is no such JSON file.
        """
        self._metadata = metadata
        path = Path(metadata.panoptic_json)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: the panoptic annotations of data set {metadata.name} are not there; "
                "is $DETECTRON2_DATASETS set to the folder that holds them?"
            )
        annotations = json.loads(path.read_text())["annotations"]
        self._annotations = {str(a["image_id"]): a for a in annotations}

    def __getitem__(self, image_id: int | str) -> Segments:
        """
        Raises:
            ValueError: the JSON has no annotation of that image, or the PNG is broken.
            FileNotFoundError: the PNG is missing.
        """
        if str(image_id) not in self._annotations:
            raise ValueError(
                f"{self._metadata.panoptic_json}: no annotation has the image_id {image_id}; is it "
                f"the file that {self._metadata.name} was made from?"
            )
        annotation = self._annotations[str(image_id)]
        png = Path(self._metadata.panoptic_root) / annotation["file_name"]
        return Segments(
            ids=read_panoptic_png(png),
            info=[self._contiguous(segment) for segment in annotation["segments_info"]],
        )

    def _contiguous(self, segment: dict[str, Any]) -> dict[str, Any]:
        category = segment["category_id"]
        things = self._metadata.thing_dataset_id_to_contiguous_id
        isthing = category in things
        ids = things if isthing else self._metadata.stuff_dataset_id_to_contiguous_id
        return {"id": segment["id"], "isthing": isthing, "category_id": ids[category]}
