"""Prepared panoptic data as records of Detectron2's standard format."""

import json
import os
from collections.abc import Container, Iterator
from functools import partial
from pathlib import Path

from detectron2.structures import BoxMode

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.packed import RecordSource
from ocr_panoptic.data.register import registered_metadata

from .annotations import read_panoptic_json
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
    panoptic = {image.id: image for image in read_panoptic_json(paths.panoptic_json).images}
    annotations = _annotations(paths.instances_json, panoptic.keys())
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
                    "iscrowd": annotation["iscrowd"],
                    "bbox": annotation["bbox"],
                    "category_id": thing_ids[annotation["category_id"]],
                    "segmentation": annotation["segmentation"],
                    "bbox_mode": BoxMode.XYWH_ABS,
                }
                for annotation in annotations.pop(number, ())
            ],
            "sem_seg_file_name": str(paths.sem_seg_root / image.semantic_name),
            "pan_seg_file_name": str(paths.panoptic_root / image.png_name),
            "segments_info": segments,
        }


def _annotations(path: Path, known: Container[int | str]) -> dict[int | str, list[dict]]:
    """Those of a prepared instance JSON, by image."""
    found: dict[int | str, list[dict]] = {}
    try:
        # As a text: from bytes, two copies would lie beside the objects made of them.
        for annotation in json.loads(path.read_text("utf-8"))["annotations"]:
            found.setdefault(annotation["image_id"], []).append(annotation)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: is no prepared instance JSON ({error!r}). Prepare the data again."
        ) from error
    if foreign := [number for number in found if number not in known]:
        raise ValueError(
            f"{path}: has instances of images that its panoptic JSON lacks: "
            f"{first_few([str(number) for number in foreign])}. Prepare the data again."
        )
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
