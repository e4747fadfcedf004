"""Things and stuff: what a panoptic JSON's ``categories`` mean for Panoptic-FPN.

Instances have contiguous ids 0..T-1, one per thing class. The semantic head has S + 1 classes:
label 0 is "things", labels 1..S are the stuff classes, and 255 is void (ignored). Both follow the
ascending category id, as Detectron2 orders COCO's categories.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ocr_panoptic.data.classes import VOID_LABEL, Color, derived_color, faults_of_class, is_id
from ocr_panoptic.data.faults import DataFaults, raise_if_any
from ocr_panoptic.formats.true_labels import THINGS_LABEL

THINGS_COLOR = [82, 18, 128]  # Detectron2's colour for the semantic class "things"


@dataclass(frozen=True)
class Category:
    id: int
    name: str
    isthing: bool
    color: Color

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
    if not isinstance(entries, list) or not entries:
        raise DataFaults([f'{source}: "categories" holds no category.'])
    faults, usable = [], []
    for entry in entries:
        wrong = list(_faults(entry))
        faults += wrong
        usable += [] if wrong else [entry]
    for key in ("id", "name"):
        for value, times in Counter(entry[key] for entry in usable).items():
            if times > 1:
                faults.append(f"category {key} {value!r} is used {times} times.")
    num_stuff = sum(not entry["isthing"] for entry in usable)
    if num_stuff >= VOID_LABEL:
        faults.append(
            f"{num_stuff} stuff categories, "
            f"at most {VOID_LABEL - 1} fit the labels of an 8-bit semantic PNG."
        )
    if not faults and num_stuff == len(usable):
        faults.append(
            "no category has isthing 1. Panoptic-FPN needs at least one thing category "
            "(no image has to show one)."
        )
    raise_if_any([f"{source}: {fault}" for fault in faults])
    return [
        Category(
            entry["id"],
            entry["name"],
            bool(entry["isthing"]),
            tuple(entry["color"]) if "color" in entry else derived_color(place),
        )
        for place, entry in enumerate(sorted(usable, key=lambda entry: entry["id"]))
    ]


def category_ids(entries: list) -> set[int]:
    """The ids of the categories, faulty ones among them: a category with a colour that cannot be
    used is still the one that its segments name."""
    ids = (entry.get("id") for entry in entries if isinstance(entry, dict))
    return {number for number in ids if is_id(number)}


def _faults(entry: object) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"a category must be an object, found {entry!r}."
        return
    number, isthing = entry.get("id"), entry.get("isthing")
    where = f"category {number!r}"
    if not is_id(number):
        yield f"{where}: the id must be an integer of at least 0 and below 2^63."
    for fault in faults_of_class(entry.get("name"), entry.get("color", [0, 0, 0])):
        yield f"{where}: {fault}"
    if isthing not in (0, 1):
        yield (
            f"{where}: isthing must be 1 (things) or 0 (stuff), found {isthing!r}. "
            "Is this a panoptic JSON?"
        )


def panoptic_metadata(categories: list[Category]) -> dict:
    """Metadata as Detectron2 has them for ``coco_2017_val_panoptic_separated``.

    The semantic class "things" belongs to no category. Detectron2 gives it the dataset id 0; where
    a category has that id, it is -1. Metrics are told apart by the names of their classes: a
    category of that name gets its kind appended.
    """
    things = [category for category in categories if category.isthing]
    stuff = [category for category in categories if not category.isthing]
    thing_names, stuff_names = (
        [f"{c.name} ({kind})" if c.name == "things" else c.name for c in group]
        for group, kind in ((things, "thing"), (stuff, "stuff"))
    )
    things_id = -1 if any(category.id == 0 for category in categories) else 0
    stuff_ids = {category.id: label for label, category in enumerate(stuff, THINGS_LABEL + 1)}
    return {
        "thing_classes": thing_names,
        "thing_colors": [list(category.color) for category in things],
        "thing_dataset_id_to_contiguous_id": {c.id: index for index, c in enumerate(things)},
        "stuff_classes": ["things", *stuff_names],
        "stuff_colors": [THINGS_COLOR, *(list(category.color) for category in stuff)],
        "stuff_dataset_id_to_contiguous_id": {**stuff_ids, things_id: THINGS_LABEL},
    }
