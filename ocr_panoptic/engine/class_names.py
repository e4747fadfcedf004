"""The class names, colours, labels and categories that a model's results contain."""

from dataclasses import dataclass

import numpy as np
from detectron2.data import Metadata

from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.predictions import raw_labels
from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class

LABELS = ("train", "dataset")


@dataclass(frozen=True)
class Classes:
    """
    The classes that a model's results contain.

    Attributes:
        names, colors: names and colours of the K semantic classes.
        labels: value that stands for each class in label PNGs, uint8 or uint16 [K].
        categories: categories in COCO panoptic format; empty for a semantic model.
        thing_ids, stuff_ids: category ids of the data set, in the order of the model's thing and
            stuff classes. The first stuff id stands for "things", which is not a category.
        thing_colors: colours of the model's thing classes.
    """

    names: list[str]
    colors: list
    labels: np.ndarray
    categories: list[dict]
    thing_ids: list[int]
    stuff_ids: list[int]
    thing_colors: list

    @property
    def thing_names(self) -> list[str]:
        """Return the names of the thing classes, in the model's order."""
        names = {category["id"]: category["name"] for category in self.categories}
        return [names[number] for number in self.thing_ids]


def classes_of(metadata: Metadata, kind: str) -> Classes:
    """
    Return the classes of a data set.

    Args:
        metadata: metadata of a semantic data set, or of a panoptic data set for Panoptic-FPN.
        kind: labels to write into result files: "train" for 0..K-1, "dataset" for the labels in
            the data set's files (if it is panoptic: category ids of stuff, and 0 for things).
    """
    labels: np.ndarray
    names = list(metadata.stuff_classes)
    things, stuff = (ids_by_class(metadata, kind) for kind in ("thing", "stuff"))
    if not things:
        if kind == "train":
            labels = np.arange(len(names), dtype=np.uint8)
        else:
            labels = raw_labels(names, metadata.get("label_map"))
        return Classes(names, metadata.stuff_colors, labels, [], [], [], [])
    labels = np.array(range(len(names)) if kind == "train" else stuff)
    if labels.min() < 0 or labels.max() > np.iinfo(np.uint16).max:
        raise UserError(
            f"--labels {kind}: the data set {metadata.name} has categories "
            f"{sorted([*things, *stuff[1:]])}, so 0 cannot stand for things, or the ids do not fit "
            "16 bits. Take --labels train."
        )
    labels = labels.astype(np.uint8 if labels.max() < 256 else np.uint16)
    categories, thing_colors = categories_of(metadata), metadata.thing_colors
    return Classes(names, metadata.stuff_colors, labels, categories, things, stuff, thing_colors)
