"""Semantic data in place: images and label PNGs with the same names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocr_panoptic.data.data_file import SemanticSplit

from .label_space import LabelSpace
from .records import LabelledFolder, load_semantic


@dataclass(frozen=True)
class SemanticSource:
    """The records of a split; calling it returns them (see :func:`load_semantic`)."""

    name: str
    split: SemanticSplit
    space: LabelSpace
    channels: int = 3

    def __call__(self) -> list[dict]:
        return load_semantic(self.name, [LabelledFolder(self.split.images, self.split.labels)])

    def metadata(self) -> dict:
        """Return the metadata of the registered data set."""
        return {**self.space.metadata(), "channels": self.channels}

    def ordered_as(self, classes: Mapping[str, Any]) -> "SemanticSource":
        """Return the source in the order of ``classes``, if these are the same classes."""
        return replace(self, space=self.space.ordered_as(classes["stuff_classes"]))

    # The check of data (check.py beside this file) calls these methods of each kind of source.

    def classes(self) -> dict[int, tuple[str, str]]:
        """Return the name and kind of each class, by training label."""
        return {label: (name, "class") for label, name in enumerate(self.space.classes)}

    def recipe(self) -> list:
        """Return everything that the result of a check depends on, except the files."""
        return [self.channels, self.space.classes, sorted(self.space.label_map.items())]

    def images(self) -> list[tuple[Path, Path]]:
        """Return the images and their label PNGs."""
        return LabelledFolder(self.split.images, self.split.labels).pairs()

    def files(self, pair: tuple[Path, Path]) -> tuple[Path, ...]:
        """Return the files that a check of the image reads."""
        return pair
