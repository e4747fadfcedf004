"""
Panoptic test sets whose ground truth only a benchmark server has.

Evaluation on them writes the predictions for the server, and computes no metrics.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from detectron2.data.datasets.builtin_meta import _get_builtin_metadata

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.panoptic.annotations import file_name_faults, panoptic_metadata
from ocr_panoptic.data.semantic.records import LabelledFolder
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import read_json

from .panoptic import CITYSCAPES_SUFFIX
from .tables import cityscapes_categories


class ServerSplit(NamedTuple):
    """A test set whose ground truth only a benchmark server has."""

    classes: dict  # metadata of the classes
    files: tuple[Path, ...]  # image folder, then others; relative to ``$DETECTRON2_DATASETS``
    load: Callable[..., list[dict]]  # absolute paths of the files -> records

    def metadata(self, images: Path) -> dict:
        """Return the metadata for Detectron2's catalog; ``images`` is the image folder."""
        return {
            **self.classes,
            "image_root": str(images),
            "evaluator_type": "coco_panoptic_seg",
            "ignore_label": VOID_LABEL,
            "label_divisor": 1000,
        }


def cityscapes_test_images(folder: Path) -> list[dict]:
    """Return a record for each image in the folder, with the image id that the server expects."""
    hint = "Unpack leftImg8bit_trainvaltest.zip of Cityscapes into cityscapes/."
    images = LabelledFolder(folder, None, (CITYSCAPES_SUFFIX,), hint=hint).unlabelled()
    return [
        {"file_name": str(image), "image_id": image.name.removesuffix(CITYSCAPES_SUFFIX)}
        for image in images
    ]


def coco_test_images(folder: Path, image_info: Path) -> list[dict]:
    """Return a record for each image that ``image_info_test-dev2017.json`` lists."""
    try:
        listed = [(i["id"], i["file_name"]) for i in read_json(image_info)["images"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{image_info}: lists no images with id and file_name.") from error
    for _, name in listed:
        for fault in file_name_faults(name):
            raise UserError(f"{image_info}: {fault}")
    return [{"file_name": str(folder / name), "image_id": number} for number, name in listed]


SERVER_SPLITS = {
    "cityscapes_panoptic_test": ServerSplit(
        panoptic_metadata(cityscapes_categories()),
        (Path("cityscapes/leftImg8bit/test"),),
        cityscapes_test_images,
    ),
    "coco_2017_test-dev_panoptic_separated": ServerSplit(
        _get_builtin_metadata("coco_panoptic_separated"),
        (Path("coco/test2017"), Path("coco/annotations/image_info_test-dev2017.json")),
        coco_test_images,
    ),
}
