"""Create Detectron2 records for semantic data: images and label images with matching names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocr_panoptic.data.data_file import SemanticSplit

from .label_space import LabelSpace
from .records import LabelledFolder, load_semantic


@dataclass(frozen=True)
class SemanticSource:
    """A semantic split; calling it returns its records in Detectron2's format."""

    name: str
    split: SemanticSplit
    space: LabelSpace
    channels: int = 3

    def __call__(self) -> list[dict]:
        return load_semantic(self.name, [LabelledFolder(self.split.images, self.split.labels)])

    def metadata(self) -> dict:
        """Return the data set's metadata for Detectron2's catalog."""
        return {**self.space.metadata(), "channels": self.channels}

    def ordered_as(self, classes: Mapping[str, Any]) -> "SemanticSource":
        """Return the source with a model's order of classes, or unchanged if class names differ."""
        return replace(self, space=self.space.ordered_as(classes["stuff_classes"]))

    # The data check calls the following methods; every class of sources has them.

    def classes(self) -> dict[int, tuple[str, str]]:
        """Return a dict from training label to class name and kind (always "class")."""
        return {label: (name, "class") for label, name in enumerate(self.space.classes)}

    def recipe(self) -> list:
        """Return the values that, together with the files, determine the result of a data check."""
        return [self.channels, self.space.classes, sorted(self.space.label_map.items())]

    def images(self) -> list[tuple[Path, Path]]:
        """Return pairs (image, label image) of files, sorted by name."""
        return LabelledFolder(self.split.images, self.split.labels).pairs()

    def files(self, pair: tuple[Path, Path]) -> tuple[Path, ...]:
        """Return the files that a check of the pair reads: the image and its label image."""
        return pair
