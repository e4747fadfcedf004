"""The true segments of a data set's images. Shape letters: H, W size of the image."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, Metadata

from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class, read_panoptic_png
from ocr_panoptic.formats.files import read_json
from ocr_panoptic.formats.pictures import local_path
from ocr_panoptic.formats.segment_runs import SegmentRuns


class TrueSegments(NamedTuple):
    """The true segments of an image."""

    png: str  # path relative to the folder of all PNGs
    ids: np.ndarray  # segment id of each pixel, int32 [H, W]; 0 is void
    segments: list[dict]  # with "id", "category_id" (the data set's id) and "iscrowd"


class PanopticTruth:
    """
    The true segments of a registered data set's images; ``truth[image_id]`` reads an image's PNG.

    Args:
        metadata: metadata of the data set. They must have panoptic_json and panoptic_root if the
            data set's records do not name panoptic PNGs.

    Attributes:
        categories: categories of the data set, in the format of a panoptic JSON, without the
            classes of a model that the data lack.
    """

    def __init__(self, metadata: Metadata):
        self._hides = metadata.get("hides_segments", False)
        self._read_segments = metadata.get("read_segments", read_panoptic_png)
        self._images: dict[int | str, tuple[str, list[dict]]] = {}
        self.categories: list[dict]
        records = DatasetCatalog.get(metadata.name)
        if records and all("pan_seg_file_name" in record for record in records):
            folders = (os.path.dirname(record["pan_seg_file_name"]) for record in records)
            root = metadata.get("panoptic_root") or os.path.commonpath(folders)
            absent = metadata.get("absent_classes") or ()
            self.categories = [c for c in categories_of(metadata) if c["name"] not in absent]
            ids = ids_by_class(metadata, "stuff"), ids_by_class(metadata, "thing")
            for record in records:
                png = os.path.relpath(record["pan_seg_file_name"], local_path(root))
                segments = [
                    {**s, "category_id": ids[s["isthing"]][s["category_id"]]}
                    for s in record["segments_info"]
                ]
                self._images[record["image_id"]] = png, segments
        else:
            root = metadata.panoptic_root
            content = read_json(Path(local_path(metadata.panoptic_json)))
            self.categories = content["categories"]
            for item in content["annotations"]:
                self._images[item["image_id"]] = item["file_name"], item["segments_info"]
        self._folder = Path(local_path(root))

    def __getitem__(self, image_id: int | str) -> TrueSegments:
        png, segments = self._images[image_id]
        segments = [{k: s.get(k, 0) for k in ("id", "category_id", "iscrowd")} for s in segments]
        ids = self._read_segments(self._folder / png)
        if self._hides:  # a segment without visible pixels does not count
            visible = set(SegmentRuns(ids).ids.tolist())
            segments = [segment for segment in segments if segment["id"] in visible]
        return TrueSegments(png, ids, segments)
