"""Create Detectron2 records for panoptic data: images, panoptic PNGs and their JSON."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from ocr_panoptic.data.classes import VOID_LABEL, derived_color
from ocr_panoptic.data.data_file import PanopticSplit
from ocr_panoptic.data.faults import DataFaults, first_few
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.coco_panoptic import THINGS_LABEL, read_panoptic_png
from ocr_panoptic.formats.files import printable

from .annotations import (
    Category,
    PanopticImage,
    PanopticJson,
    panoptic_metadata,
    read_panoptic_json,
)

logger = logging.getLogger(__name__)


@dataclass
class PanopticSource:
    """
    A panoptic split; calling it returns its records in Detectron2's format.

    The JSON is read when its content is first needed. It is kept until the records are made, and
    is not sent to other processes, because it takes far more memory than the records.

    A record has file_name, height, width, image_id, pan_seg_file_name and two lists:

    - segments_info: id, category_id, isthing and iscrowd of each segment. The category_id is
      0..T-1 for the T thing classes and 1..S for the S stuff classes.
    - annotations: category_id, iscrowd and segment_id of each thing.

    The mapper derives labels, masks and boxes from the PNG. Images without segments are left out.

    Attributes:
        hides: whether others are expected to hide segments; if not, the data check warns of it.
        read_segments: function that reads the segment ids of a file in ``split.segments``.
        order: names of a trained model's thing classes, and of its stuff classes; if None, classes
            are ordered by category id.
    """

    name: str
    split: PanopticSplit
    channels: int = 3
    hides: bool = False
    read_segments: Callable[[str | os.PathLike], np.ndarray] = read_panoptic_png
    order: tuple[list[str], list[str]] | None = None
    _content: PanopticJson | None = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_content": None}

    def __call__(self) -> list[dict]:
        metadata = panoptic_metadata(self.categories())
        kinds = {
            category: (label, kind == "thing")
            for kind in ("stuff", "thing")
            for category, label in metadata[f"{kind}_dataset_id_to_contiguous_id"].items()
        }
        records = [self.record(image, kinds) for image in self.images()]
        self._content = None
        return records

    @property
    def content(self) -> PanopticJson:
        """The categories, images and segments of the split."""
        if self._content is None:
            self._content = self.read()
        return self._content

    def read(self) -> PanopticJson:
        """Read the split's JSON."""
        return read_split(self.split)

    def categories(self) -> list[Category]:
        """Return the categories, with the trained model's classes that the data lack."""
        listed = self.content.categories
        if not self.order:
            return listed
        of_name = {(c.isthing, c.name): c for c in listed}
        free = count(max(c.id for c in listed) + 1)
        return [
            of_name.get((isthing, name))
            or Category(next(free), name, isthing, derived_color(place))
            for isthing, names in zip((True, False), self.order)
            for place, name in enumerate(names)
        ]

    def with_classes(self, classes: Mapping[str, Any]) -> "PanopticSource":
        """Return a copy with a model's classes, or self if the model lacks a class of the data."""
        order = classes.get("thing_classes", []), classes["stuff_classes"][THINGS_LABEL + 1 :]
        if any(c.name not in order[not c.isthing] for c in self.content.categories):
            return self
        source = replace(self, order=order)
        source._content = self._content
        return source

    def images(self) -> list[PanopticImage]:
        """Return the images that have segments, by ascending id; warn about all others."""
        content = self.content
        if not any(image.segments for image in content.images):
            raise DataFaults([f"{content.path}: no image has segments, so all pixels are void."])
        if void := [image.file_name for image in content.images if not image.segments]:
            logger.warning(
                f"{content.path}: left out {len(void)} of {len(content.images)} images because "
                f"all their pixels are void: {first_few(void)}"
            )
        return sorted((i for i in content.images if i.segments), key=lambda image: image.id)

    def record(self, image: PanopticImage, kinds: dict[int, tuple[int, bool]]) -> dict:
        """Return an image's record; ``kinds`` maps a category id to (contiguous id, isthing)."""
        file_name, png, *_ = self.files(image)
        segments = []
        for segment in image.segments:
            label, isthing = kinds[segment["category_id"]]
            iscrowd = int(segment.get("iscrowd", 0))
            segments.append(
                dict(id=segment["id"], category_id=label, isthing=isthing, iscrowd=iscrowd)
            )
        return {
            "file_name": file_name,
            "height": image.height,
            "width": image.width,
            "image_id": image.id,
            "annotations": [
                {"category_id": s["category_id"], "iscrowd": s["iscrowd"], "segment_id": s["id"]}
                for s in segments
                if s["isthing"]
            ],
            "pan_seg_file_name": png,
            "segments_info": segments,
            "hides_segments": True,
            **self._reading(),
        }

    def metadata(self) -> dict:
        absent = [c.name for c in self.categories() if c.id not in self.classes()]
        lack = {"absent_classes": absent} if absent else {}
        return {**panoptic_metadata(self.categories()), **lack, **self.file_metadata()}

    def file_metadata(self) -> dict:
        return {
            "image_root": str(self.split.images),
            "panoptic_root": str(self.split.segments),
            "panoptic_json": str(self.split.annotations),
            "evaluator_type": "coco_panoptic_seg",
            "ignore_label": VOID_LABEL,
            "label_divisor": 1000,
            "channels": self.channels,
            "hides_segments": True,
            **self._reading(),
        }

    def _reading(self) -> dict:
        is_plain = self.read_segments is read_panoptic_png
        return {} if is_plain else {"read_segments": self.read_segments}

    # The data check calls the following methods; every class of sources has them. The recipe holds
    # the values that, together with the files, determine the result of a check.

    def classes(self) -> dict[int, tuple[str, str]]:
        """Return a dict from the data's category ids to class name and kind (thing or stuff)."""
        listed = self.content.categories if self.order else self.categories()
        return {c.id: (c.name, "thing" if c.isthing else "stuff") for c in listed}

    def recipe(self) -> list:
        return [self.channels, self.hides, str(self.split.annotations)]

    def files(self, image: PanopticImage) -> tuple[str, ...]:
        return (
            os.path.join(self.split.images, image.file_name),
            os.path.join(self.split.segments, image.png_name),
        )


def read_split(split: PanopticSplit) -> PanopticJson:
    """Read a split's panoptic JSON; raise MissingFileError if a folder of the split is missing."""
    for folder, what in ((split.images, "images"), (split.segments, "panoptic PNGs")):
        if not folder.is_dir():
            raise MissingFileError(
                f"{printable(folder)}: folder of {what} not found. Was it moved? Paths are "
                "relative to the data file or, for published data, to DETECTRON2_DATASETS."
            )
    return read_panoptic_json(split.annotations)
