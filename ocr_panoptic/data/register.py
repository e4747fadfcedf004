"""Registration of prepared data with Detectron2, in its standard format."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog
from detectron2.data.datasets import load_coco_json

from .categories import VOID_LABEL, panoptic_metadata
from .manifest import MANIFEST_NAME, PreparedSplit, read_manifest
from .panoptic_json import read_panoptic_json
from .prepare import datasets_root
from .semantic_manifest import read_semantic_manifest
from .semantic_records import LabelledFolder, load_semantic

logger = logging.getLogger(__name__)

_registered: dict[str, Path] = {}  # name -> manifest or folder, of what this module has registered


def register_prepared(root: Path | str | None = None) -> list[str]:
    """Register every ``root/*/dataset.json`` as ``<name>_<split>``.

    Annotations are read when Detectron2 asks for them; categories are read here. It may be called
    again: the data sets found then replace those registered before under the same names.

    Args:
        root: by default ``$DETECTRON2_DATASETS``, or ``datasets``.

    Returns:
        names of the data sets found, sorted.

    Raises:
        ValueError: a broken manifest, two manifests of one name, or a name that Detectron2 or
            other code has registered.
    """
    root = datasets_root() if root is None else Path(root)
    found: dict[str, Path] = {}
    for path in sorted(root.glob(f"*/{MANIFEST_NAME}")):
        for name, load, metadata in _data_sets(path):
            if name in found:
                raise ValueError(f"Two data sets are named {name}: {found[name]} and {path}.")
            found[name] = path
            register(name, path, load, metadata)
    return sorted(found)


def _data_sets(path: Path) -> list[tuple[str, Callable[[], list[dict]], dict]]:
    """(name, loader, metadata) of every split of a manifest, panoptic or semantic."""
    panoptic, semantic = read_manifest(path), read_semantic_manifest(path)
    if panoptic:
        common = panoptic_metadata(panoptic.categories)
        return [
            (
                f"{panoptic.name}_{split}",
                partial(load_prepared, paths, common),
                {**common, **_panoptic_paths(paths)},
            )
            for split, paths in panoptic.splits.items()
        ]
    if semantic:
        return [
            (
                name := f"{semantic.name}_{split}",
                partial(load_semantic, name, [LabelledFolder(paths.images, paths.labels)]),
                semantic.space.metadata(),
            )
            for split, paths in semantic.splits.items()
        ]
    return []


def _panoptic_paths(paths: PreparedSplit) -> dict:
    return {
        "image_root": str(paths.images),
        "panoptic_root": str(paths.panoptic_root),
        "panoptic_json": str(paths.panoptic_json),
        "sem_seg_root": str(paths.sem_seg_root),
        "json_file": str(paths.instances_json),
        "evaluator_type": "coco_panoptic_seg",
        "ignore_label": VOID_LABEL,
        "label_divisor": 1000,
    }


def register(name: str, origin: Path, load: Callable[[], list[dict]], metadata: dict) -> None:
    """Register a data set, in place of one that this function has registered under its name.

    Args:
        origin: the manifest or folder, for messages.
        load: returns the records.

    Raises:
        ValueError: the name belongs to Detectron2 or other code.
    """
    if name in DatasetCatalog:
        if name not in _registered:
            raise ValueError(
                f"{origin}: the name {name} belongs to a data set that is registered already. "
                "Prepare the data under another --name."
            )
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    DatasetCatalog.register(name, load)
    MetadataCatalog.get(name).set(**metadata)
    _registered[name] = origin


def load_prepared(paths: PreparedSplit, metadata: dict) -> list[dict]:
    """Records of one split in Detectron2's standard format.

    Each has file_name, image_id, height, width, annotations (contiguous category ids, boxes as
    XYWH_ABS, RLE masks, iscrowd), sem_seg_file_name, pan_seg_file_name and segments_info
    (contiguous category ids, isthing).

    Raises:
        FileNotFoundError: the prepared files are gone.
        ValueError: they are broken.
    """
    if not paths.instances_json.is_file():
        raise FileNotFoundError(
            f"{paths.instances_json}: not found. Run datasets/prepare_panoptic.py again."
        )
    thing_ids = metadata["thing_dataset_id_to_contiguous_id"]
    stuff_ids = metadata["stuff_dataset_id_to_contiguous_id"]
    panoptic = {image.id: image for image in read_panoptic_json(paths.panoptic_json).images}
    records = load_coco_json(str(paths.instances_json), str(paths.images))
    for record in records:
        image = panoptic[record["image_id"]]
        for annotation in record["annotations"]:
            annotation["category_id"] = thing_ids[annotation["category_id"]]
        record["sem_seg_file_name"] = str(paths.sem_seg_root / image.semantic_name)
        record["pan_seg_file_name"] = str(paths.panoptic_root / image.png_name)
        record["segments_info"] = []
        for segment in image.segments:
            isthing = segment["category_id"] in thing_ids
            contiguous = (thing_ids if isthing else stuff_ids)[segment["category_id"]]
            record["segments_info"].append(
                {**segment, "category_id": contiguous, "isthing": isthing}
            )
    return records


def class_counts(dataset_name: str) -> tuple[int, int]:
    """(thing classes, classes of the semantic head) of a registered panoptic data set.

    The second is the number of stuff classes plus one, for the label "things".

    Raises:
        ValueError: no data set of that name is registered, or it is not one of Panoptic-FPN.
    """
    metadata = _metadata(dataset_name)
    things, stuff = (metadata.get(key) for key in ("thing_classes", "stuff_classes"))
    if not things or not stuff or stuff[0] != "things":
        raise ValueError(
            f"Data set {dataset_name!r} is not laid out for Panoptic-FPN: it needs thing_classes, "
            f"and stuff_classes that begin with 'things'; found {things} and {stuff}."
        )
    return len(things), len(stuff)


def semantic_class_count(dataset_name: str) -> int:
    """Classes of a registered semantic data set.

    Raises:
        ValueError: no data set of that name is registered, or it has no semantic classes.
    """
    classes = _metadata(dataset_name).get("stuff_classes")
    if not classes:
        raise ValueError(f"Data set {dataset_name!r} has no semantic classes (stuff_classes).")
    return len(classes)


def _metadata(dataset_name: str) -> Metadata:
    if dataset_name not in DatasetCatalog:
        prepared = [name for name, origin in _registered.items() if origin.name == MANIFEST_NAME]
        raise ValueError(
            f"Data set {dataset_name!r} is not registered. Prepared data sets here: "
            f"{', '.join(sorted(prepared)) or 'none'} (under {datasets_root()}; set "
            "DETECTRON2_DATASETS to look elsewhere, prepare with datasets/prepare_panoptic.py or "
            "prepare_semantic.py)."
        )
    return MetadataCatalog.get(dataset_name)
