"""Semantic data as they lie: images and label PNGs of the same names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ocr_panoptic.data.data_file import SemanticSplit
from ocr_panoptic.formats.labels import apply_label_map, pixel_counts, read_label_png
from ocr_panoptic.formats.pictures import read_size

from .label_space import LabelSpace
from .records import LabelledFolder, load_semantic


@dataclass(frozen=True)
class SemanticSource:
    """The records of one split; called, it returns all of them, see :func:`load_semantic`.

    Attributes:
        name: name of the data set.
        channels: channels of the images.
    """

    name: str
    split: SemanticSplit
    space: LabelSpace
    channels: int = 3

    def __call__(self) -> list[dict]:
        return load_semantic(self.name, [self._folder()])

    def metadata(self) -> dict:
        """Return the metadata of the registered data set."""
        return {**self.space.metadata(), "channels": self.channels}

    def ordered_as(self, classes: Mapping[str, Any]) -> "SemanticSource":
        """Return the source with its classes in the order of other metadata, if these have the same
        names."""
        return replace(self, space=self.space.ordered_as(classes["stuff_classes"]))

    def _folder(self) -> LabelledFolder:
        return LabelledFolder(self.split.images, self.split.labels)

    # What the check of data asks of each kind of source.

    def classes(self) -> dict[int, tuple[str, str]]:
        """Return the name and kind of each class, by training label."""
        return {label: (name, "class") for label, name in enumerate(self.space.classes)}

    def recipe(self) -> list:
        """Return what the result of a check depends on besides the files."""
        return [self.channels, sorted(self.space.label_map.items())]

    def images(self) -> list[tuple[Path, Path]]:
        """Return the images and their label PNGs."""
        return self._folder().pairs()

    def files(self, pair: tuple[Path, Path]) -> tuple[Path, ...]:
        """Return the files that a check of the image reads."""
        return pair

    def general_faults(self, pairs: list[tuple[Path, Path]]) -> Iterator[str]:
        return iter(())

    def checker(self) -> Callable[[tuple[Path, Path]], tuple]:
        """Return :func:`check_labelled_image` of this source, for other processes."""
        return partial(check_labelled_image, self.space.label_map, self.channels)


def check_labelled_image(
    label_map: Mapping[int, int], channels: int, pair: tuple[Path, Path]
) -> tuple[list[str], tuple[int, int], dict[int, tuple[int, int]]]:
    """Check an image and its label PNG; both are decoded wholly.

    Returns:
        faults; height and width; training label -> 0 (it has no segments) and number of pixels.
    """
    image, label_png = pair
    faults, size, shown = [], None, {}
    try:
        size = read_size(image, channels)
    except ValueError as error:
        faults.append(f"{image}: the image {error}.")
    try:
        labels = read_label_png(label_png)
    except (FileNotFoundError, ValueError) as error:
        return [*faults, str(error)], (0, 0), shown
    height, width = labels.shape
    if size and (width, height) != (size.width, size.height):
        faults.append(
            f"{label_png}: the label PNG has {width}x{height} pixels, the image {image} "
            f"{size.width}x{size.height}{size.note} (width x height)."
        )
    try:
        pixels = pixel_counts(apply_label_map(labels, label_map))
        shown = {int(label): (0, int(pixels[label])) for label in np.flatnonzero(pixels)}
    except ValueError as error:
        faults.append(f"{label_png}: {error}")
    return faults, (height, width), shown
