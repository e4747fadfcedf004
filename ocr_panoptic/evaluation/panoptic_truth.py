"""The true segments of a data set's images. Shape letters: H, W size of the image."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, Metadata

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class, read_panoptic_png
from ocr_panoptic.formats.pictures import local_path
from ocr_panoptic.formats.segment_runs import SegmentRuns


class TrueSegments(NamedTuple):
    """
    The true segments of an image.

    Attributes:
        png: name of the PNG, relative to the folder of all PNGs.
        ids: int32 [H, W]; 0 is void.
        segments: mappings with "id", "category_id" (the data set's) and "iscrowd".
    """

    png: str
    ids: np.ndarray
    segments: list[dict]


class PanopticTruth:
    """
    The true segments of a registered data set's images, by ``image_id``.

    A PNG is read when its image is asked for.

    Attributes:
        categories: categories as in a panoptic JSON.
    """

    def __init__(self, metadata: Metadata):
        """
        Read the list of images.

        Args:
            metadata: metadata of a registered data set whose records name their panoptic PNGs; or
                metadata with panoptic_json and panoptic_root, such as Detectron2's
                ``coco_2017_val_panoptic_separated``.
        """
        self._name, self._json = metadata.name, metadata.panoptic_json
        self._hides = metadata.get("hides_segments", False)
        self._read_segments = metadata.get("read_segments", read_panoptic_png)
        records = DatasetCatalog.get(metadata.name) if metadata.name in DatasetCatalog else []
        if records and all("pan_seg_file_name" in record for record in records):
            self._read_records(records, metadata)
        else:
            self._read_json(metadata)

    def _read_records(self, records: list[dict], metadata: Metadata) -> None:
        self.categories: list[dict] = categories_of(metadata)
        self._folder = Path(metadata.panoptic_root)
        ids = ids_by_class(metadata, "stuff"), ids_by_class(metadata, "thing")
        self._images = {
            record["image_id"]: (
                os.path.relpath(record["pan_seg_file_name"], self._folder),
                [
                    {
                        "id": segment["id"],
                        "category_id": ids[segment["isthing"]][segment["category_id"]],
                        "iscrowd": segment.get("iscrowd", 0),
                    }
                    for segment in record["segments_info"]
                ],
            )
            for record in records
        }

    def _read_json(self, metadata: Metadata) -> None:
        path = Path(local_path(metadata.panoptic_json))
        self._folder = Path(local_path(metadata.panoptic_root))
        if not path.is_file():
            raise MissingFileError(
                f"{path}: the panoptic annotations of data set {self._name} are not there; "
                "is $DETECTRON2_DATASETS set to the folder that holds them?"
            )
        content = json.loads(path.read_bytes())
        if not all("segments_info" in annotation for annotation in content["annotations"]):
            raise UserError(
                f"{path}: expected a panoptic JSON, found annotations without segments_info. "
                "Is it an instance JSON?"
            )
        self.categories = content["categories"]
        self._images = {
            annotation["image_id"]: (
                annotation["file_name"],
                [
                    {key: segment.get(key, 0) for key in ("id", "category_id", "iscrowd")}
                    for segment in annotation["segments_info"]
                ],
            )
            for annotation in content["annotations"]
        }

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, image_id: int | str) -> TrueSegments:
        if image_id not in self._images:
            raise UserError(
                f"image_id {image_id!r} is not in the panoptic JSON {self._json}; is it the file "
                f"that {self._name!r} was made from?"
            )
        png, segments = self._images[image_id]
        ids = self._read_segments(self._folder / png)
        if self._hides:  # a segment without visible pixels does not count
            shown = set(SegmentRuns(ids).ids.tolist())
            segments = [segment for segment in segments if segment["id"] in shown]
        return TrueSegments(png, ids, segments)
