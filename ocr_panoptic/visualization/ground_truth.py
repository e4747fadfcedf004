"""The true panoptic maps of a data set in COCO panoptic format."""

import json
from pathlib import Path
from typing import Any

from detectron2.data import Metadata

from ocr_panoptic.panoptic_png import read_panoptic_png
from ocr_panoptic.visualization.scene import Segments


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
