"""
Complete what Detectron2 leaves optional in the metadata and the records of a data set.

Detectron2's tutorial asks only for the names of the classes. Everything else that this package
reads about classes (colours, category ids, the kind of evaluation, a label map) gets its default
here. Data in Detectron2's panoptic format, as its ``register_coco_panoptic`` gives them, are laid
out for Panoptic-FPN: thing classes 0..T-1, stuff classes 1..S, and semantic label 0 for "things".
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from detectron2.data import DatasetCatalog, MetadataCatalog

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import THINGS_LABEL, VOID_LABEL

from .classes import derived_color
from .faults import first_few
from .panoptic.annotations import THINGS_COLOR, Category, panoptic_metadata

PANOPTIC, SEMANTIC, INSTANCES = "coco_panoptic_seg", "sem_seg", "coco"  # values of evaluator_type
_ORIGINAL = "metadata_before_layout"  # key of the metadata that a data set had before its layout


def with_defaults(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return metadata with a default for every optional key that describes the classes.

    Classes without colours get different colours. Panoptic classes without category ids are
    numbered: things from 0, and stuff after them. If ``ignore_label`` is not 255, a label map gives
    its pixels the label 255, which all losses and metrics ignore.
    """
    things, stuff = (metadata.get(f"{kind}_classes") or [] for kind in ("thing", "stuff"))
    defaults: dict[str, Any] = {}
    if things:
        defaults["thing_colors"] = [list(derived_color(k)) for k in range(len(things))]
        defaults["thing_dataset_id_to_contiguous_id"] = {k: k for k in range(len(things))}
    if stuff:
        colors = [list(derived_color(len(things) + k)) for k in range(len(stuff))]
        defaults["stuff_colors"] = [THINGS_COLOR, *colors[1:]] if stuff[0] == "things" else colors
    if things and stuff:
        thing_ids = metadata.get("thing_dataset_id_to_contiguous_id") or range(len(things))
        first = max(thing_ids) + 1
        ids = [-1 if 0 in thing_ids else 0, *range(first, first + len(stuff) - 1)]
        defaults["stuff_dataset_id_to_contiguous_id"] = {n: k for k, n in enumerate(ids)}
    ignored = metadata.get("ignore_label", VOID_LABEL)
    if stuff and ignored != VOID_LABEL:
        label_map = {**{k: k for k in range(len(stuff))}, ignored: VOID_LABEL}
        defaults["label_map"] = {raw: label for raw, label in label_map.items() if raw >= 0}
    given = {key: value for key, value in metadata.items() if value is not None}
    return {**metadata, **defaults, **given}


@dataclass(frozen=True)
class CompletedRecords:
    """
    The records of a data set that other code has registered, with what this package reads.

    Each record gets ``dataset_name``. If a panoptic record has no ``annotations``, or other labels
    than Panoptic-FPN's, its labels and things come from the panoptic PNG.

    Attributes:
        load: function that returns the records, as registered.
        is_panoptic: whether the data set is evaluated as panoptic data.
        labels: for stuff (False) and things (True), the label in Panoptic-FPN's layout of each
            category_id in ``segments_info``; None if the records have this layout.
    """

    name: str
    load: Callable[[], list[dict]]
    is_panoptic: bool
    labels: Mapping[bool, Mapping[int, int]] | None = None

    def __call__(self) -> list[dict]:
        return [self._completed(record) for record in self.load()]

    def _completed(self, record: dict) -> dict:
        record = {**record, "dataset_name": self.name}
        objects = record.get("annotations")
        is_laid_out = self.labels is None and objects is not None
        if is_laid_out or not self.is_panoptic or "pan_seg_file_name" not in record:
            return record
        record.pop("sem_seg_file_name", None)
        segments = [self._segment(segment) for segment in record["segments_info"]]
        if objects is None:
            objects = [
                {"segment_id": s["id"], "category_id": s["category_id"], "iscrowd": s["iscrowd"]}
                for s in segments
                if s["isthing"]
            ]
        elif self.labels:  # masks and boxes that the data set gives
            label = self.labels[True]
            objects = [{**a, "category_id": label[a["category_id"]]} for a in objects]
        # As in Detectron2, the JSON may list a segment that has no pixel in the PNG.
        return {**record, "segments_info": segments, "annotations": objects, "hides_segments": True}

    def _segment(self, segment: dict) -> dict:
        label, isthing = segment["category_id"], segment.get("isthing")
        if isthing is None:
            kinds = [kind for kind, known in (self.labels or {}).items() if label in known]
            if len(kinds) != 1:
                raise UserError(
                    f"Data set {self.name!r}: it is unclear whether category_id {label} in "
                    "segments_info is a thing or stuff. Set isthing to True or False in all "
                    "segments."
                )
            isthing = kinds[0]
        label = self.labels[bool(isthing)][label] if self.labels else label
        iscrowd = int(segment.get("iscrowd", 0))
        return {**segment, "category_id": label, "isthing": bool(isthing), "iscrowd": iscrowd}


def complete_data_set(name: str) -> None:
    """
    Complete a data set that other code has registered; do nothing the second time.

    The metadata stay the same object, so that a reference to them shows the classes of a model's
    results.
    """
    load = DatasetCatalog[name]
    if isinstance(load, CompletedRecords):
        return
    kind, metadata = _kind(name, load), MetadataCatalog.get(name)
    original = metadata.get(_ORIGINAL) or metadata.as_dict()
    values, labels = {**original, "evaluator_type": kind}, None
    if kind == PANOPTIC and not _is_laid_out(original):
        layout, labels = panoptic_layout(name, original)
        values |= {**layout, _ORIGINAL: original}
    values |= {"hides_segments": True} if kind == PANOPTIC else {}
    vars(metadata).update(with_defaults(values))
    DatasetCatalog.remove(name)
    DatasetCatalog.register(name, CompletedRecords(name, load, kind == PANOPTIC, labels))


def _kind(name: str, load: Callable[[], list[dict]]) -> str | None:
    """Return evaluator_type; if the metadata lack it, it follows from the first record."""
    kind = MetadataCatalog.get(name).get("evaluator_type")
    if kind is not None:  # such as cityscapes_panoptic_seg or ade20k_sem_seg
        ours = (k for k in (PANOPTIC, SEMANTIC) if kind.endswith(k.removeprefix("coco_")))
        return next(ours, kind)
    keys = next(iter(load()), {}).keys()
    has_things = MetadataCatalog.get(name).get("thing_classes")
    if "pan_seg_file_name" in keys or ({"sem_seg_file_name", "annotations"} <= keys and has_things):
        return PANOPTIC
    if "sem_seg_file_name" in keys:
        return SEMANTIC
    return INSTANCES if "annotations" in keys else None


def _is_laid_out(metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata have Panoptic-FPN's layout, or name no stuff classes."""
    stuff = metadata.get("stuff_classes") or ["things"]
    things = metadata.get("thing_dataset_id_to_contiguous_id") or {}
    return stuff[0] == "things" and sorted(things.values()) == [*range(len(things))]


def panoptic_layout(
    name: str, metadata: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[bool, dict[int, int]]]:
    """
    Lay out the classes of Detectron2's panoptic format for Panoptic-FPN.

    In that format, ``thing_classes`` and ``stuff_classes`` may each list all classes; the keys of
    ``thing_dataset_id_to_contiguous_id`` tell which are things.

    Returns:
        - metadata with the layout
        - for stuff (False) and things (True), the new label of each category_id

    Raises:
        UserError: the metadata do not tell things from stuff.
    """
    ids = {k: metadata.get(f"{k}_dataset_id_to_contiguous_id") or {} for k in ("thing", "stuff")}
    names = {kind: metadata.get(f"{kind}_classes") or [] for kind in ids}
    has_things = names["stuff"][:1] == ["things"]
    ids["stuff"] = {
        number: k
        for number, k in ids["stuff"].items()
        if number not in ids["thing"] and not (has_things and k == THINGS_LABEL)
    }
    is_named = all(k < len(names[kind]) for kind in ids for k in ids[kind].values())
    if not ids["thing"] or not is_named or metadata.get("sem_seg_root"):
        raise UserError(
            f"Data set {name!r} cannot be used for Panoptic-FPN. With semantic PNGs, "
            "stuff_classes must begin with 'things' (label 0); found "
            f"{first_few(names['stuff']) or 'none'}. With panoptic PNGs, set thing_classes, "
            "thing_dataset_id_to_contiguous_id, stuff_classes and "
            "stuff_dataset_id_to_contiguous_id, as Detectron2's register_coco_panoptic "
            f"does.{data_file_advice(name, metadata)}"
        )
    categories: list[Category] = []
    labels = {}
    for kind, first in (("thing", 0), ("stuff", 1)):
        colors = metadata.get(f"{kind}_colors")
        ordered = sorted(ids[kind].items(), key=lambda entry: entry[1])
        for number, k in ordered:
            color = colors[k] if colors else derived_color(len(categories))
            categories.append(Category(number, names[kind][k], kind == "thing", tuple(color)))
        labels[kind == "thing"] = {k: label for label, (_, k) in enumerate(ordered, first)}
    return panoptic_metadata(categories), labels


# For each kind of data file, the metadata that hold its paths.
_ROOTS = {
    "panoptic": {
        "images": "image_root",
        "annotations": "panoptic_json",
        "segments": "panoptic_root",
    },
    "semantic": {"images": "image_root", "labels": "sem_seg_root"},
}


def data_file_advice(
    name: str, metadata: Mapping[str, Any] | Any, kinds: Sequence[str] = tuple(_ROOTS)
) -> str:
    """Return the lines of a data file as advice, or "" if the metadata do not name its files."""
    stem, _, split = name.rpartition("_")
    for kind in kinds:
        paths = {key: metadata.get(root) or "" for key, root in _ROOTS[kind].items()}
        if all(paths.values()):
            places = {key: os.path.abspath(place) for key, place in paths.items()}
            content = {"name": stem or name, kind: {split if stem else "train": places}}
            if kind == "semantic":
                content["classes"] = list(metadata.get("stuff_classes") or [])
            text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=10_000)
            return f" Or save these lines to a file and give it as --data:\n{text.rstrip()}"
    return ""
