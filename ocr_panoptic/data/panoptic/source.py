"""Records of panoptic data as they lie: images, panoptic PNGs and their JSON."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import numpy as np

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.data_file import PanopticSplit
from ocr_panoptic.data.faults import DataFaults, first_few
from ocr_panoptic.data.fingerprint import file_state
from ocr_panoptic.data.index import Index, Row
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png

from .annotations import Category, PanopticImage, PanopticJson, panoptic_metadata, parse_categories
from .check import check_image, read_split

logger = logging.getLogger(__name__)

CategoryKinds = dict[int, tuple[int, bool]]  # category id -> contiguous id, is it a thing?


@dataclass(frozen=True)
class PanopticSource:
    """The records of one split; called, all of them as Detectron2 has them.

    Each has file_name, height, width, image_id, pan_seg_file_name; segments_info: id, category_id
    (contiguous; of stuff 1..S), isthing and iscrowd; annotations: category_id, iscrowd and
    segment_id of the things. Labels, masks and boxes follow from the PNG. Images without any
    segment are left out.

    Attributes:
        name: of the data set.
        channels: of the images.
        hides: a segment without a pixel in its PNG is no fault: others hide it.
        read_segments: the ids of a file of ``split.segments``.
    """

    name: str
    split: PanopticSplit
    channels: int = 3
    hides: bool = False
    read_segments: Callable[[str | os.PathLike], np.ndarray] = read_panoptic_png

    def __call__(self) -> list[dict]:
        index = self.index()
        kinds = kinds_of(self.categories(index))
        return [self.record(row, kinds) for row in index.records()]

    def index(self) -> Index:
        return Index(self)

    def key(self) -> list:
        return list(map(os.path.abspath, vars(self.split).values()))

    def recipe(self) -> list:
        return [self.channels, self.hides]

    def state(self) -> list:
        return [file_state(self.split.annotations)]

    def content(self) -> PanopticJson:
        """Return all images with their segments.

        Raises:
            FileNotFoundError, DataFaults: as :func:`read_split`.
        """
        return read_split(self.split)

    def read(self) -> tuple[dict, Iterator[Row]]:
        content = self.content()
        if not any(image.segments for image in content.images):
            raise DataFaults([f"{content.path}: no image holds a segment, all pixels are void."])
        if void := [image.file_name for image in content.images if not image.segments]:
            logger.warning(
                f"{content.path}: left out {len(void)} of {len(content.images)} images that hold "
                f"nothing but void: {first_few(void)}"
            )
        things = {category.id for category in content.categories if category.isthing}
        objects = Counter(
            segment["category_id"]
            for image in content.images
            for segment in image.segments
            if segment["category_id"] in things and not segment.get("iscrowd", 0)
        )
        common = {
            "categories": [category.as_json() for category in content.categories],
            "instances": list(objects.items()),
        }
        return common, self._rows(content, things)

    def _rows(self, content: PanopticJson, things: Container[int]) -> Iterator[Row]:
        for image in sorted(content.images, key=lambda image: image.id):
            objects = (
                segment["category_id"] in things and not segment.get("iscrowd", 0)
                for segment in image.segments
            )
            if image.segments:
                yield Row(vars(image), image.width > image.height, any(objects))

    def strange_folders(self, index: Index) -> Iterator[str]:
        """Yield a fault for each folder that has none of several images: one in place of a fault
        for each image."""
        if len(index) < 2:
            return
        for k, key in enumerate(("images", "segments")):
            if not any(os.path.exists(self.files(record)[k]) for record in index.records()):
                yield (
                    f"{self.split.annotations}: of its {len(index)} images none has a file in "
                    f"{getattr(self.split, key)}, such as {self.files(index.record(0))[k]}. "
                    f"Give {self.name} annotations and {key} of the same split, with file names "
                    "relative to that folder."
                )

    def files(self, record: dict) -> tuple[str, ...]:
        return (
            os.path.join(self.split.images, record["file_name"]),
            os.path.join(self.split.segments, record["png_name"]),
        )

    def check(self, record: dict) -> tuple[list[str], list[int]]:
        """Returns: faults; the area of each segment in pixels, in the order of the record's."""
        image = PanopticImage(**record)
        faults, runs = check_image(image, self.split, self.channels, self.hides, self.read_segments)
        areas = {} if runs is None else runs.statistics
        found = (areas.get(segment["id"]) for segment in image.segments)
        return faults, [0 if segment is None else segment.area for segment in found]

    def categories(self, index: Index) -> list[Category]:
        return parse_categories(index.common["categories"], self.name)

    def instances(self, index: Index) -> Counter[int]:
        """Return how many there are of each thing class, by contiguous ids; crowds not counted."""
        kinds = kinds_of(self.categories(index))
        return Counter({kinds[number][0]: times for number, times in index.common["instances"]})

    def record(self, row: dict, kinds: CategoryKinds) -> dict:
        """The record of an image, from what the index has."""
        image, png, *_ = self.files(row)
        segments = []
        for segment in row["segments"]:
            label, isthing = kinds[segment["category_id"]]
            segments.append(
                {
                    "id": segment["id"],
                    "category_id": label,
                    "isthing": isthing,
                    "iscrowd": int(segment.get("iscrowd", 0)),
                }
            )
        return {
            "file_name": image,
            "height": row["height"],
            "width": row["width"],
            "image_id": row["id"],
            "annotations": [
                {"category_id": s["category_id"], "iscrowd": s["iscrowd"], "segment_id": s["id"]}
                for s in segments
                if s["isthing"]
            ],
            "pan_seg_file_name": png,
            "segments_info": segments,
            **({"hides_segments": True} if self.hides else {}),
            **self._reading(),
        }

    def metadata(self) -> dict:
        """Return the metadata of the registered data set; the JSON is read unless the index has
        it."""
        return {**panoptic_metadata(self.categories(self.index())), **self.file_metadata()}

    def file_metadata(self) -> dict:
        """Return the metadata that do not follow from the categories."""
        return {
            "image_root": str(self.split.images),
            "panoptic_root": str(self.split.segments),
            "panoptic_json": str(self.split.annotations),
            "evaluator_type": "coco_panoptic_seg",
            "ignore_label": VOID_LABEL,
            "label_divisor": 1000,
            "channels": self.channels,
            "hides_segments": self.hides,
            **self._reading(),
        }

    def _reading(self) -> dict:
        is_plain = self.read_segments is read_panoptic_png
        return {} if is_plain else {"read_segments": self.read_segments}


def kinds_of(categories: list[Category]) -> CategoryKinds:
    """Return category id -> (contiguous id, is it a thing), as :meth:`PanopticSource.record` takes
    it."""
    metadata = panoptic_metadata(categories)
    return {
        category: (label, isthing)
        for kind, isthing in (("stuff", False), ("thing", True))
        for category, label in metadata[f"{kind}_dataset_id_to_contiguous_id"].items()
    }
