"""Semantic data as they lie: images and label PNGs of the same names."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ocr_panoptic.data.data_file import SemanticSplit
from ocr_panoptic.data.index import Index, Row
from ocr_panoptic.formats.labels import apply_label_map, pixel_counts, read_label_png
from ocr_panoptic.formats.pictures import read_size

from .label_space import LabelSpace
from .records import LabelledFolder, load_semantic


@dataclass(frozen=True)
class SemanticSource:
    """The records of one split; called, all of them, see :func:`load_semantic`.

    Attributes:
        name: of the data set.
        channels: of the images.
    """

    name: str
    split: SemanticSplit
    space: LabelSpace
    channels: int = 3

    def __call__(self) -> list[dict]:
        return load_semantic(self.name, [self._folder()])

    def index(self) -> Index:
        return Index(self)

    def key(self) -> list:
        return list(map(os.path.abspath, vars(self.split).values()))

    def recipe(self) -> list:
        return [self.channels, sorted(self.space.label_map.items())]

    def state(self) -> list:
        return [list(self._names(pair)) for pair in self._folder().pairs()]

    def read(self) -> tuple[dict, Iterator[Row]]:
        names = map(self._names, self._folder().pairs())
        return {}, (Row({"image": image, "labels": png}, False, False) for image, png in names)

    def files(self, record: dict) -> tuple[str, str]:
        return (
            os.path.join(self.split.images, record["image"]),
            os.path.join(self.split.labels, record["labels"]),
        )

    def check(self, record: dict) -> tuple[list[str], list[list[int]]]:
        """Returns: faults; the training labels in the image, the pixels of each, [H, W]."""
        image, label_png = self.files(record)
        faults, size, found = [], None, [[], [], []]
        try:
            size = read_size(Path(image), self.channels)
        except ValueError as error:
            faults.append(f"{image}: the image {error}.")
        try:
            labels = read_label_png(label_png)
        except (FileNotFoundError, ValueError) as error:
            return [*faults, str(error)], found
        height, width = labels.shape
        if size and (width, height) != (size.width, size.height):
            faults.append(
                f"{label_png}: the label PNG has {width}x{height} pixels, the image {image} "
                f"{size.width}x{size.height}{size.note} (width x height)."
            )
        try:
            pixels = pixel_counts(apply_label_map(labels, self.space.label_map))
            shown = np.flatnonzero(pixels)
            found = [shown.tolist(), pixels[shown].tolist(), [height, width]]
        except ValueError as error:
            faults.append(f"{label_png}: {error}")
        return faults, found

    def metadata(self) -> dict:
        """Return the metadata of the registered data set."""
        return {**self.space.metadata(), "channels": self.channels}

    def _folder(self) -> LabelledFolder:
        return LabelledFolder(self.split.images, self.split.labels)

    def _names(self, pair: tuple[Path, Path]) -> tuple[str, str]:
        image, labels = pair
        return str(image.relative_to(self.split.images)), str(labels.relative_to(self.split.labels))
