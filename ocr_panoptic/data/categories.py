"""Things and stuff: what a panoptic JSON's ``categories`` mean for Panoptic-FPN.

Instances have contiguous ids 0..T-1, one per thing class. The semantic head has S + 1 classes:
label 0 is "things", labels 1..S are the stuff classes, and 255 is void (ignored). Both follow the
ascending category id, as Detectron2 orders COCO's categories.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass

from .faults import raise_if_any

THINGS_LABEL = 0
VOID_LABEL = 255
THINGS_COLOR = [82, 18, 128]  # Detectron2's colour for the semantic class "things"


@dataclass(frozen=True)
class Category:
    id: int
    name: str
    isthing: bool
    color: tuple[int, int, int]

    def as_json(self) -> dict:
        """The category as COCO panoptic format has it."""
        return {
            "id": self.id,
            "name": self.name,
            "isthing": int(self.isthing),
            "color": list(self.color),
        }


def parse_categories(entries: object, source: str) -> list[Category]:
    """The ``categories`` of a panoptic JSON, in ascending order of ids.

    A category without "color" gets one that depends on its place in that order alone.

    Args:
        entries: the JSON's value.
        source: the file's name, for messages.

    Raises:
        DataFaults: ids, names or colours that cannot be used, or no thing category at all.
    """
    faults: list[str] = []
    usable = [entry for entry in _entries(entries, source, faults) if _check(entry, source, faults)]
    for key in ("id", "name"):
        values = [entry[key] for entry in usable]
        for value in sorted({value for value in values if values.count(value) > 1}, key=str):
            faults.append(
                f"{source}: category {key} {value!r} is used {values.count(value)} times."
            )
    num_stuff = sum(not entry["isthing"] for entry in usable)
    if num_stuff >= VOID_LABEL:
        faults.append(
            f"{source}: {num_stuff} stuff categories, "
            f"at most {VOID_LABEL - 1} fit the labels of an 8-bit semantic PNG."
        )
    if usable and num_stuff == len(usable):
        faults.append(
            f"{source}: no category has isthing 1. Panoptic-FPN needs at least one thing category "
            "(no image has to show one)."
        )
    raise_if_any(faults)
    return [
        Category(
            entry["id"],
            entry["name"],
            bool(entry["isthing"]),
            tuple(entry["color"]) if "color" in entry else derived_color(place),
        )
        for place, entry in enumerate(sorted(usable, key=lambda entry: entry["id"]))
    ]


def is_id(value: object) -> bool:
    """Whether a JSON value can be an id: an integer of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entries(entries: object, source: str, faults: list[str]) -> list[dict]:
    if not isinstance(entries, list) or not entries:
        faults.append(f'{source}: "categories" holds no category.')
        return []
    return entries


def _check(entry: object, source: str, faults: list[str]) -> bool:
    """Append what is wrong with one category; whether nothing is."""
    if not isinstance(entry, dict):
        faults.append(f"{source}: a category must be an object, found {entry!r}.")
        return False
    where = f"{source}: category {entry.get('id')!r}"
    before = len(faults)
    if not is_id(entry.get("id")):
        faults.append(f"{where}: the id must be an integer of at least 0.")
    if not isinstance(entry.get("name"), str) or not entry["name"]:
        faults.append(f"{where}: the name must be a text, found {entry.get('name')!r}.")
    if entry.get("isthing") not in (0, 1):
        faults.append(
            f"{where}: isthing must be 1 (things) or 0 (stuff), found {entry.get('isthing')!r}. "
            "Is this a panoptic JSON?"
        )
    color = entry.get("color", [0, 0, 0])
    if not (
        isinstance(color, list) and len(color) == 3 and all(is_id(c) and c <= 255 for c in color)
    ):
        faults.append(f"{where}: color must be three integers 0..255, found {color!r}.")
    return len(faults) == before


def derived_color(place: int) -> tuple[int, int, int]:
    """Hues a golden angle apart: neighbours in a list differ, and no colour comes twice."""
    hue = place * 0.618033988749895 % 1.0
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.65, 0.95 - 0.3 * (place % 3) / 2)
    return round(255 * red), round(255 * green), round(255 * blue)


def semantic_label_of(categories: Iterable[Category]) -> dict[int, int]:
    """Category id -> label of the semantic PNG: 0 for things, 1..S for stuff."""
    labels, next_label = {}, THINGS_LABEL + 1
    for category in categories:
        if category.isthing:
            labels[category.id] = THINGS_LABEL
        else:
            labels[category.id] = next_label
            next_label += 1
    return labels


def panoptic_metadata(categories: list[Category]) -> dict:
    """Metadata as Detectron2 has them for ``coco_2017_val_panoptic_separated``.

    The semantic class "things" belongs to no category. Detectron2 gives it the dataset id 0; where
    a category has that id, it is -1.
    """
    things = [category for category in categories if category.isthing]
    stuff = [category for category in categories if not category.isthing]
    things_id = -1 if any(category.id == 0 for category in categories) else 0
    stuff_ids = {category.id: label for label, category in enumerate(stuff, THINGS_LABEL + 1)}
    return {
        "thing_classes": [category.name for category in things],
        "thing_colors": [list(category.color) for category in things],
        "thing_dataset_id_to_contiguous_id": {c.id: index for index, c in enumerate(things)},
        "stuff_classes": ["things", *(category.name for category in stuff)],
        "stuff_colors": [THINGS_COLOR, *(list(category.color) for category in stuff)],
        "stuff_dataset_id_to_contiguous_id": {**stuff_ids, things_id: THINGS_LABEL},
    }
