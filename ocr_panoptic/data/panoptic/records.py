"""Prepared panoptic data as records of Detectron2's standard format."""

from collections.abc import Callable
from functools import partial

from detectron2.data.datasets import load_coco_json

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.register import registered_metadata

from .annotations import read_panoptic_json
from .categories import Category, panoptic_metadata
from .manifest import PreparedSplit


def panoptic_data_set(
    name: str, categories: list[Category], paths: PreparedSplit
) -> tuple[Callable[[], list[dict]], dict]:
    """The loader and the metadata of one split."""
    classes = panoptic_metadata(categories)
    return partial(load_panoptic, paths, classes), {
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


def load_panoptic(paths: PreparedSplit, metadata: dict) -> list[dict]:
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
    metadata = registered_metadata(dataset_name)
    things, stuff = (metadata.get(key) for key in ("thing_classes", "stuff_classes"))
    if not things or not stuff or stuff[0] != "things":
        raise ValueError(
            f"Data set {dataset_name!r} is not laid out for Panoptic-FPN: it needs thing_classes, "
            f"and stuff_classes that begin with 'things'; found {things} and {stuff}."
        )
    return len(things), len(stuff)
