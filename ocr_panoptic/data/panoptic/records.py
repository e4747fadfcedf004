"""Prepared panoptic data as records of Detectron2's standard format."""

import os
from collections.abc import Container, Iterator
from functools import partial
from pathlib import Path

from detectron2.structures import BoxMode

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.collection import collection_paused
from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.packed import RecordSource
from ocr_panoptic.data.register import registered_metadata
from ocr_panoptic.files import read_json

from .annotations import MAX_BYTES, read_panoptic_json
from .categories import Category, panoptic_metadata
from .manifest import PreparedSplit


def panoptic_data_set(
    name: str, categories: list[Category], paths: PreparedSplit
) -> tuple[RecordSource, dict]:
    """The loader and the metadata of one split."""
    classes = panoptic_metadata(categories)
    files = paths.instances_json, paths.panoptic_json
    recipe = [
        [category.as_json() for category in categories],
        *map(str, (paths.images, paths.panoptic_root, paths.sem_seg_root)),
    ]
    return RecordSource(partial(load_panoptic, paths, classes), recipe, files), {
        **classes,
        "image_root": str(paths.images),
        "panoptic_root": str(paths.panoptic_root),
        "panoptic_json": str(paths.panoptic_json),
        "sem_seg_root": str(paths.sem_seg_root),
        "json_file": str(paths.instances_json),
        "evaluator_type": "coco_panoptic_seg",
        "ignore_label": VOID_LABEL,
        "label_divisor": 1000,
        "mask_format": "bitmask",
    }


def load_panoptic(paths: PreparedSplit, metadata: dict) -> Iterator[dict]:
    """Records of one split in Detectron2's standard format, by ascending image id.

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
    annotations = _annotations(paths.instances_json, thing_ids)
    panoptic = {image.id: image for image in read_panoptic_json(paths.panoptic_json).images}
    if foreign := [number for number in annotations if number not in panoptic]:
        raise ValueError(
            f"{paths.instances_json}: has instances of images that {paths.panoptic_json} lacks: "
            f"{first_few([f'{number!s:.100}' for number in foreign])}. "
            "Run datasets/prepare_panoptic.py again."
        )
    for number in sorted(panoptic):
        image = panoptic.pop(number)
        segments = []
        for segment in image.segments:
            isthing = segment["category_id"] in thing_ids
            contiguous = (thing_ids if isthing else stuff_ids)[segment["category_id"]]
            segments.append({**segment, "category_id": contiguous, "isthing": isthing})
        yield {
            "file_name": os.path.join(paths.images, image.file_name),
            "height": image.height,
            "width": image.width,
            "image_id": number,
            "annotations": [
                {
                    "iscrowd": iscrowd,
                    "bbox": list(box),
                    "category_id": thing_ids[category],
                    "segmentation": {"size": [image.height, image.width], "counts": counts},
                    "bbox_mode": BoxMode.XYWH_ABS,
                }
                for iscrowd, box, category, counts in annotations.pop(number, ())
            ],
            "sem_seg_file_name": str(paths.sem_seg_root / image.semantic_name),
            "pan_seg_file_name": str(paths.panoptic_root / image.png_name),
            "segments_info": segments,
        }


def _annotations(path: Path, thing_ids: Container[int]) -> dict[int | str, list[tuple]]:
    """Those of a prepared instance JSON by image: iscrowd, bbox, category_id, counts of the RLE.

    As tuples, made while the JSON is parsed: as dicts they would take three times the memory.
    """

    def shorten(entry: dict) -> tuple | str | dict:
        if "counts" in entry:
            return entry["counts"]
        if "segmentation" in entry:
            if entry["category_id"] not in thing_ids:
                raise ValueError(f"category_id {entry['category_id']!r}")
            number, box, category = entry["image_id"], tuple(entry["bbox"]), entry["category_id"]
            return number, (entry["iscrowd"], box, category, entry["segmentation"])
        return entry

    found: dict[int | str, list[tuple]] = {}
    try:
        with collection_paused():
            content = read_json(path, MAX_BYTES, shorten)
            for number, annotation in content["annotations"]:
                found.setdefault(number, []).append(annotation)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path}: is no prepared instance JSON ({error!r:.300}). "
            "Run datasets/prepare_panoptic.py again."
        ) from error
    return found


def class_counts(dataset_name: str) -> tuple[int, int]:
    """(thing classes, classes of the semantic head) of a registered panoptic data set.

    The second is the number of stuff classes plus one, for the label "things".

    Raises:
        ValueError: no data set of that name is registered, or it is not one of Panoptic-FPN.
    """
    metadata = registered_metadata(dataset_name)
    things, stuff = (metadata.get(key) for key in ("thing_classes", "stuff_classes"))
    if not things or not stuff or stuff[0] != "things":
        raise ValueError(
            f"Data set {dataset_name!r} is not laid out for Panoptic-FPN: it needs thing_classes, "
            f"and stuff_classes that begin with 'things'; found {things} and {stuff}."
        )
    return len(things), len(stuff)
