"""The classes of a semantic data set, and what the labels in its files mean.

Training labels are 0..K-1, one per class, and 255 for ignored pixels. Files may hold other labels,
"raw" ones; a map leads from each raw label that may occur to a training label.

Shape letters: K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from .categories import VOID_LABEL, derived_color, is_id
from .faults import raise_if_any

MAX_RAW_LABEL = 65535  # of a 16-bit PNG

Color = tuple[int, int, int]


@dataclass(frozen=True)
class LabelSpace:
    """
    Attributes:
        classes: K names, in the order of training labels.
        label_map: raw label -> training label or 255. A raw label that it lacks is a fault.
        colors: K colours, RGB 0..255.
        flip_pairs: training labels that change places in a mirrored image (left and right arm).
        class_categories: the coarser category of each class, where a benchmark scores those too.
    """

    classes: tuple[str, ...]
    label_map: Mapping[int, int]
    colors: tuple[Color, ...]
    flip_pairs: tuple[tuple[int, int], ...] = ()
    class_categories: tuple[str, ...] | None = None

    def metadata(self) -> dict:
        """As Detectron2 names them, and ``label_map`` and ``flip_pairs``."""
        metadata = {
            "evaluator_type": "sem_seg",
            "ignore_label": VOID_LABEL,
            "stuff_classes": list(self.classes),
            "stuff_colors": [list(color) for color in self.colors],
            "label_map": dict(self.label_map),
            "flip_pairs": list(self.flip_pairs),
        }
        if self.class_categories:
            metadata["class_categories"] = list(self.class_categories)
        return metadata

    def as_json(self) -> dict:
        """What :func:`parse_label_space` takes. Categories are left out: no file has them."""
        labels: dict[int, list[int]] = {}
        for raw, label in self.label_map.items():
            labels.setdefault(label, []).append(raw)
        return {
            "classes": [
                {"name": name, "color": list(color), "labels": labels[label]}
                for label, (name, color) in enumerate(zip(self.classes, self.colors, strict=True))
            ],
            "ignore": labels.get(VOID_LABEL, []),
            "flip_pairs": [[self.classes[a], self.classes[b]] for a, b in self.flip_pairs],
        }


def derived_colors(num_classes: int) -> tuple[Color, ...]:
    """Colours for a data set that comes without."""
    return tuple(derived_color(place) for place in range(num_classes))


def read_class_file(path: Path) -> LabelSpace:
    """Read a YAML or JSON file of classes; datasets/README.md shows the format.

    Raises:
        FileNotFoundError: there is no such file.
        DataFaults: it cannot be used; every reason is named.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: file of classes not found.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: neither YAML nor JSON ({error}).") from error
    return parse_label_space(content, str(path))


def parse_label_space(content: object, source: str) -> LabelSpace:
    """
    Args:
        content: {"classes": [name or {"name", "color", "labels"}, ...], "ignore": ...,
            "flip_pairs": [[name, name], ...]}. "labels" and "ignore" are a raw label or a list.
            Without "labels" the raw labels are 0, 1, ... in the order of the list; without
            "ignore" it is 255, unless a class has that.
        source: the file's name, for messages.

    Raises:
        DataFaults: it cannot be used; every reason is named.
    """
    if not isinstance(content, dict) or not isinstance(content.get("classes"), list):
        raise_if_any([f'{source}: expected "classes:" with a list of class names.'])
    faults = [
        f"{source}: unknown key {key!r}; there are classes, ignore and flip_pairs."
        for key in content.keys() - {"classes", "ignore", "flip_pairs"}
    ]
    entries = [_entry(entry, source, faults) for entry in content["classes"]]
    names = tuple(entry["name"] for entry in entries)
    if not 1 <= len(names) <= VOID_LABEL:
        faults.append(f"{source}: {len(names)} classes; there may be 1 to {VOID_LABEL}.")
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.append(f"{source}: class {name!r} comes {names.count(name)} times.")
    flip_pairs = _flip_pairs(content.get("flip_pairs", []), names, source, faults)
    label_map = _label_map(entries, content.get("ignore"), source, faults)
    raise_if_any(faults)
    colors = tuple(
        tuple(entry.get("color", derived_color(place))) for place, entry in enumerate(entries)
    )
    return LabelSpace(names, label_map, colors, flip_pairs)


def _entry(entry: object, source: str, faults: list[str]) -> dict:
    """A class as a mapping; its faults are appended."""
    entry = entry if isinstance(entry, dict) else {"name": entry}
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        # YAML reads a bare `no`, `on` or `12` as a truth value or number.
        faults.append(f"{source}: a class's name must be a text (in quotes?), found {name!r}.")
        entry = {**entry, "name": str(name)}
    for key in entry.keys() - {"name", "color", "labels"}:
        faults.append(f"{source}: class {name!r}: unknown key {key!r}.")
    color = entry.get("color", [0, 0, 0])
    if not (
        isinstance(color, list) and len(color) == 3 and all(is_id(c) and c <= 255 for c in color)
    ):
        faults.append(
            f"{source}: class {name!r}: color must be three integers 0..255, found {color!r}."
        )
    return entry


def _label_map(
    entries: list[dict], ignore: object, source: str, faults: list[str]
) -> dict[int, int]:
    given = ["labels" in entry for entry in entries]
    if any(given) and not all(given):
        without = [entry["name"] for entry, has in zip(entries, given) if not has]
        faults.append(
            f"{source}: some classes have labels, {', '.join(map(repr, without))} not; give them "
            "to all classes or to none."
        )
        return {}
    owners = [
        (entry["name"], label, _as_list(entry.get("labels", label)))
        for label, entry in enumerate(entries)
    ]
    if ignore is None:
        claimed = any(VOID_LABEL in raw_labels for _, _, raw_labels in owners)
        ignore = [] if claimed else VOID_LABEL
    label_map: dict[int, int] = {}
    for owner, label, raw_labels in [*owners, ("ignore", VOID_LABEL, _as_list(ignore))]:
        if not raw_labels and label != VOID_LABEL:
            faults.append(f"{source}: class {owner!r} has no label.")
        for raw in raw_labels:
            if not is_id(raw) or raw > MAX_RAW_LABEL:
                faults.append(
                    f"{source}: {owner!r}: label {raw!r} is no integer 0..{MAX_RAW_LABEL}."
                )
            elif raw in label_map:
                faults.append(f"{source}: label {raw} is given twice, the last time to {owner!r}.")
            else:
                label_map[raw] = label
    return label_map


def _as_list(value: object) -> list:
    return value if isinstance(value, list) else [value]


def _flip_pairs(
    pairs: object, names: tuple[str, ...], source: str, faults: list[str]
) -> tuple[tuple[int, int], ...]:
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        faults.append(f"{source}: flip_pairs must be a list of pairs of names, found {pairs!r}.")
        return ()
    flat = [name for pair in pairs for name in pair]
    for name in flat:
        if name not in names:
            faults.append(f"{source}: flip_pairs names {name!r}, which is no class.")
        elif flat.count(name) > 1:
            faults.append(f"{source}: flip_pairs names {name!r} {flat.count(name)} times.")
    if faults:
        return ()
    return tuple((names.index(a), names.index(b)) for a, b in pairs)
