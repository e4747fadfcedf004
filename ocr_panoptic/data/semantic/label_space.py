"""
The classes of a semantic data set, and the meaning of the labels in its files.

Training labels are 0..K-1, one for each of the K classes, and 255 for ignored pixels. Files may
hold other labels, called raw labels; a label map gives the training label of each raw label.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocr_panoptic.data.classes import VOID_LABEL, derived_color, faults_of_class, is_color, is_id
from ocr_panoptic.data.faults import DataFaults, raise_if_any, repeated
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.files import read_yaml
from ocr_panoptic.formats.labels import MAX_NUMBER, color_label, label_text
from ocr_panoptic.formats.pictures import Color

WHITE = [255, 255, 255]


@dataclass(frozen=True)
class LabelSpace:
    """
    The classes of a semantic data set, and its label map.

    Attributes:
        classes: names of the K classes, in the order of training labels.
        label_map: dict from raw labels to training labels or 255; other raw labels are faults.
        flip_pairs: pairs of training labels that a flip must swap, such as left and right arm.
        default_ignore: whether the default for ignored labels (255 or nothing) is used.
        class_categories: coarser category of each class, for benchmarks that also score categories.
    """

    classes: tuple[str, ...]
    label_map: Mapping[int, int]
    colors: tuple[Color, ...]
    flip_pairs: tuple[tuple[int, int], ...] = ()
    default_ignore: bool = False
    class_categories: tuple[str, ...] | None = None

    def metadata(self) -> dict:
        """Return metadata for Detectron2's catalog, including ``label_map`` and ``flip_pairs``."""
        categories = self.class_categories
        return {
            "evaluator_type": "sem_seg",
            "ignore_label": VOID_LABEL,
            "stuff_classes": list(self.classes),
            "stuff_colors": [list(color) for color in self.colors],
            "label_map": dict(self.label_map),
            "flip_pairs": list(self.flip_pairs),
            **({"class_categories": list(categories)} if categories else {}),
            **({"absent_classes": self.absent} if self.absent else {}),
        }

    @property
    def absent(self) -> list[str]:
        """Names of a model's classes that the data lack, because no raw label stands for them."""
        labels = {*self.label_map.values()}
        return [name for label, name in enumerate(self.classes) if label not in labels]

    def with_classes(self, names: Sequence[str]) -> "LabelSpace":
        """Return a copy with the classes ``names``, or self if they lack one of its classes."""
        if not {*self.classes} <= {*names}:
            return self
        label = [*map([*names].index, self.classes)]
        of_label = dict(enumerate(label)) | {VOID_LABEL: VOID_LABEL}
        places = {name: place for place, name in enumerate(self.classes)}
        categories = self.class_categories if len(names) == len(self.classes) else None
        return replace(
            self,
            classes=tuple(names),
            label_map={raw: of_label[old] for raw, old in self.label_map.items()},
            colors=tuple(
                self.colors[places[name]] if name in places else derived_color(new)
                for new, name in enumerate(names)
            ),
            flip_pairs=tuple((label[a], label[b]) for a, b in self.flip_pairs),
            class_categories=categories and tuple(categories[places[name]] for name in names),
        )


def read_class_file(path: Path) -> LabelSpace:
    """Read a class file in YAML or JSON; datasets/README.md shows the format."""
    if not path.is_file():
        raise MissingFileError(f"{path}: class file not found, or not a regular file.")
    return parse_label_space(read_yaml(path), str(path))


def parse_label_space(content: object, source: str) -> LabelSpace:
    """
    Return the label space that a file's content describes; datasets/README.md shows the format.

    If no class has the key "labels", the raw labels are 0, 1, ... in the order of classes; if all
    classes have different colours, each colour is also a raw label. Without the key "ignore", 255
    is ignored, unless 255 or white is a raw label of a class, or all raw labels are colours.
    All faults are raised together as DataFaults; each message begins with ``source``.
    """
    if not isinstance(content, dict) or not isinstance(content.get("classes"), list):
        form = '"classes:" with a list of class names, such as [background, object]'
        raise DataFaults([f"{source}: expected {form}."])
    entries = [e if isinstance(e, dict) else {"name": e} for e in content["classes"]]
    names = tuple(str(entry.get("name")) for entry in entries)
    flip_pairs = content.get("flip_pairs", [])
    faults = [*_faults(content, entries, names), *_faults_of_pairs(flip_pairs, names)]
    label_map = _label_map(entries, names, content.get("ignore"), faults)
    raise_if_any([f"{source}: {fault}" for fault in faults])
    colors = tuple(
        tuple(entry.get("color", derived_color(place))) for place, entry in enumerate(entries)
    )
    pairs = tuple((names.index(a), names.index(b)) for a, b in flip_pairs)
    return LabelSpace(names, label_map, colors, pairs, "ignore" not in content)


def _faults(content: dict, entries: list[dict], names: tuple[str, ...]) -> Iterator[str]:
    for key in content.keys() - {"classes", "ignore", "flip_pairs"}:
        yield f"unknown key {key!r}. The valid keys are classes, ignore and flip_pairs."
    for entry in entries:
        where = f"class {entry.get('name')!r}"
        for fault in faults_of_class(entry.get("name"), entry.get("color", [0, 0, 0])):
            yield f"{where}: {fault}"
        for key in entry.keys() - {"name", "color", "labels"}:
            yield f"{where}: unknown key {key!r}. The valid keys are name, color and labels."
    if len(names) == 1:
        yield (
            f"{names[0]!r} is the only class, so a model would predict it everywhere. Add a class "
            "for all other pixels, such as background."
        )
    elif not names or len(names) > VOID_LABEL:
        yield f"found {len(names)} classes, expected 2 to {VOID_LABEL}."
    for name, times in repeated(names):
        yield f"class {name!r} is listed {times} times."


def _faults_of_pairs(pairs: object, names: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        yield f"flip_pairs must be a list of pairs of class names, found {pairs!r}."
        return
    flat = [name for pair in pairs for name in pair]
    for name in flat:
        if name not in names:
            yield f"flip_pairs names {name!r}, which is not a class."
        elif flat.count(name) > 1:
            yield f"flip_pairs names {name!r} {flat.count(name)} times; expected once."


def _label_map(
    entries: list[dict], names: tuple[str, ...], ignore: object, faults: list[str]
) -> dict[int, int]:
    without = [name for name, entry in zip(names, entries) if "labels" not in entry]
    if 0 < len(without) < len(entries):
        faults.append(
            f"{', '.join(map(repr, without))} must have labels, because other classes have them. "
            "Give labels to all classes or to none."
        )
        return {}
    raw = [_as_list(entry.get("labels", label)) for label, entry in enumerate(entries)]
    colors: list[Any] = [entry.get("color") for entry in entries]
    if without and all(map(is_color, colors)) and not [*repeated(map(tuple, colors))]:
        raw = [[*labels, color] for labels, color in zip(raw, colors, strict=True)]
    if ignore is None:
        listed = [value for labels in raw for value in labels]
        claimed = VOID_LABEL in listed or WHITE in listed or all(map(is_color, listed))
        ignore = [] if claimed else VOID_LABEL
    owners = [*zip(names, range(len(names)), raw), ("ignore", VOID_LABEL, _as_list(ignore))]
    label_map: dict[int, int] = {}
    for owner, label, raw_labels in owners:
        if not raw_labels and label != VOID_LABEL:
            faults.append(f"class {owner!r} has an empty list of labels.")
        for raw in raw_labels:
            if is_color(raw):
                number = color_label(raw)
            elif is_id(raw) and raw <= MAX_NUMBER:
                number = raw
            else:
                faults.append(
                    f"{owner!r}: label {raw!r} is neither an integer 0..{MAX_NUMBER} nor a colour "
                    "[R, G, B]."
                )
                continue
            if number in label_map:
                text = label_text(number)
                hint = " For a colour, write [[R, G, B]]." if len(raw_labels) == 3 else ""
                if without and label == VOID_LABEL:
                    other = names[label_map[number]]
                    hint = (
                        f" Without the key labels, {text} is the label of class {other}. Give "
                        "every class its labels ({name: ..., labels: ...}), and remove classes "
                        "to ignore."
                    )
                faults.append(f"label {text} is used twice, the second time for {owner!r}.{hint}")
            else:
                label_map[number] = label
    return label_map


def _as_list(value: object) -> list:
    return value if isinstance(value, list) else [value]
