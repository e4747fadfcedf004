"""The images of a registered data set with their truth, of any kind, as one looks at them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, Metadata

from ocr_panoptic.data.register import registered_metadata
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class, read_panoptic_png
from ocr_panoptic.formats.labels import read_labels
from ocr_panoptic.formats.pictures import Color

VOID = 0  # in the map of an item


class DataClass(NamedTuple):
    name: str
    isthing: bool
    color: Color


class TrueSegment(NamedTuple):
    id: int
    class_index: int  # in DataItems.classes
    iscrowd: bool


@dataclass(frozen=True)
class DataItem:
    """
    Attributes:
        name: the image's path below the folder of all.
        image, truth: files; no truth where a server keeps it.
        segments: of a panoptic PNG; None for a label PNG, whose segments are its labels.
    """

    name: str
    image: str
    truth: str | None
    segments: tuple[TrueSegment, ...] | None


@dataclass(frozen=True)
class DataItems:
    """
    Attributes:
        classes: of panoptic data the categories, by ascending id.
        has_things: panoptic data, whose things are told apart.
        label_map: of semantic data, if there is one.
        total: images of the data set, of which ``items`` may be a sample.
        read_segments: of panoptic data, see :func:`.read_segment_ids`.
    """

    classes: list[DataClass]
    items: list[DataItem]
    has_things: bool
    label_map: dict[int, int] | None
    total: int
    read_segments: Callable[[str], np.ndarray] = read_panoptic_png

    def truth(self, item: DataItem) -> tuple[np.ndarray, tuple[TrueSegment, ...]]:
        """
        Returns:
            the ids of the segments, int32 [H, W], 0 void; and these, of labels one for each class.

        Raises:
            FileNotFoundError, ValueError: the file is missing or broken; it is named.
        """
        if item.segments is not None:
            return self.read_segments(item.truth), item.segments
        labels = read_labels(item.truth, self.label_map).astype(np.int32)
        ids = np.where(labels < len(self.classes), labels + 1, VOID)
        found = np.unique(ids)
        return ids, tuple(TrueSegment(k, k - 1, False) for k in found.tolist() if k != VOID)


def data_items(dataset_name: str, limit: int | None = None) -> DataItems:
    """
    Args:
        limit: images at most, evenly spread over the data set.

    Raises:
        ValueError: no data set of that name is registered, or it is none of segmentation.
        FileNotFoundError, DataFaults: of its files.
    """
    metadata = registered_metadata(dataset_name)
    records = DatasetCatalog.get(dataset_name)
    if metadata.get("thing_classes") and all("pan_seg_file_name" in r for r in records):
        return _panoptic_items(metadata, records, limit)
    if not metadata.get("stuff_classes") or metadata.get("thing_classes"):
        raise UserError(
            f"Data set {dataset_name!r} has no truth to look at: neither panoptic PNGs nor "
            "semantic labels."
        )
    names = _short_names([record["file_name"] for record in records])
    items = [
        DataItem(name, record["file_name"], record.get("sem_seg_file_name"), None)
        for name, record in zip(names, records, strict=True)
    ]
    colors = [tuple(map(int, color)) for color in metadata.stuff_colors]
    classes = [
        DataClass(name, False, color)
        for name, color in zip(metadata.stuff_classes, colors, strict=True)
    ]
    return DataItems(
        classes, _sample(items, limit), False, metadata.get("label_map"), total=len(items)
    )


def _panoptic_items(metadata: Metadata, records: list[dict], limit: int | None) -> DataItems:
    categories = categories_of(metadata)
    place = {category["id"]: k for k, category in enumerate(categories)}
    ids = ids_by_class(metadata, "stuff"), ids_by_class(metadata, "thing")
    records = sorted(records, key=lambda record: record["file_name"])
    items = [
        DataItem(
            os.path.relpath(record["file_name"], metadata.image_root),
            record["file_name"],
            record["pan_seg_file_name"],
            tuple(
                TrueSegment(
                    s["id"], place[ids[s["isthing"]][s["category_id"]]], bool(s.get("iscrowd", 0))
                )
                for s in record["segments_info"]
            ),
        )
        for record in _sample(records, limit)
    ]
    classes = [DataClass(c["name"], bool(c["isthing"]), tuple(c["color"])) for c in categories]
    read = metadata.get("read_segments", read_panoptic_png)
    return DataItems(classes, items, True, None, len(records), read)


def _short_names(files: list[str]) -> list[str]:
    if not files:
        return []
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    return [os.path.relpath(file, folder) for file in files]


def _sample(entries: list, limit: int | None) -> list:
    if limit is None or limit >= len(entries):
        return entries
    return [entries[place] for place in np.linspace(0, len(entries) - 1, limit).astype(int)]
