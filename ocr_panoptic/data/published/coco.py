"""
COCO 2017 for Panoptic-FPN, read from the downloaded files.

Detectron2's ``coco_2017_{train,val,val_100}_panoptic_separated`` need semantic PNGs, written by
Detectron2's ``prepare_panoptic_fpn.py``. This module's data sets have the same names, and derive
labels from the panoptic PNGs instead. As in Detectron2, instances come from ``instances_*.json``.
"""

from dataclasses import dataclass
from pathlib import Path

from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES, _get_builtin_metadata
from detectron2.data.datasets.coco import load_coco_json

from ocr_panoptic.data.data_file import PanopticSplit
from ocr_panoptic.data.faults import DataFaults, first_few, raise_if_any
from ocr_panoptic.data.panoptic.annotations import (
    Category,
    PanopticJson,
    panoptic_metadata,
    parse_categories,
)
from ocr_panoptic.data.panoptic.source import PanopticSource, read_split
from ocr_panoptic.errors import MissingFileError

# Split -> image folder, PNG folder, end of the JSONs' names. "val_100" has 100 images of val2017.
FOLDERS = {
    "train": ("train2017", "panoptic_train2017", "train2017"),
    "val": ("val2017", "panoptic_val2017", "val2017"),
    "val_100": ("val2017", "panoptic_val2017", "val2017_100"),
}
COCO_PANOPTIC = {f"coco_2017_{split}_panoptic_separated": names for split, names in FOLDERS.items()}


@dataclass
class CocoSource(PanopticSource):
    """A panoptic split whose instances come from a separate JSON in COCO's format."""

    instances_json: Path = Path()

    def read(self) -> PanopticJson:
        return coco_segments(read_split(self.split))

    def categories(self) -> list[Category]:
        return coco_categories()

    def recipe(self) -> list:
        return [*super().recipe(), str(self.instances_json)]

    def __call__(self) -> list[dict]:
        if not self.instances_json.is_file():
            raise MissingFileError(
                f"{self.instances_json}: instance JSON not found. Unpack "
                "annotations_trainval2017.zip into coco/."
            )
        try:
            loaded = load_coco_json(str(self.instances_json), str(self.split.images))
        except (AssertionError, KeyError, TypeError, AttributeError, ValueError) as error:
            fault = f"not a COCO instance JSON ({type(error).__name__}: {error})."
            raise DataFaults([f"{self.instances_json}: {fault} Download it again."]) from error
        annotations = {record["image_id"]: record["annotations"] for record in loaded}
        images = {image.id for image in self.content.images}
        if foreign := sorted(annotations.keys() ^ images):
            some = first_few(list(map(str, foreign)))
            fault = f"{self.split.annotations} has other images: one file lacks the ids {some}."
            raise DataFaults([f"{self.instances_json}: {fault} Use JSONs of the same split."])
        records = super().__call__()
        class_of = panoptic_metadata(coco_categories())["thing_dataset_id_to_contiguous_id"]
        for record in records:
            image_id = record["image_id"]
            record["annotations"] = annotations[image_id]
            for annotation in record["annotations"]:
                if (category := annotation.get("category_id")) not in class_of:
                    fault = f"category {category} of image {image_id} is not a thing class of COCO."
                    raise DataFaults([f"{self.instances_json}: {fault}"])
                annotation["category_id"] = class_of[category]
        return records

    def metadata(self) -> dict:
        return {
            **self.file_metadata(),
            **_get_builtin_metadata("coco_panoptic_separated"),
            "json_file": str(self.instances_json),
        }


def coco_categories() -> list[Category]:
    return parse_categories(COCO_CATEGORIES, "COCO_CATEGORIES")


def coco_segments(content: PanopticJson) -> PanopticJson:
    """Remove areas and boxes from ``content``; raise DataFaults if a category is not in COCO."""
    isthing_of = {category.id: category.isthing for category in coco_categories()}
    raise_if_any(
        [
            f"{content.path}: category {category.id} ({category.name!r}, isthing "
            f"{int(category.isthing)}) is not a COCO category. For your own data, write a data "
            "file."
            for category in content.categories
            if isthing_of.get(category.id) != category.isthing
        ]
    )
    for image in content.images:
        for segment in image.segments:
            segment.pop("area", None)
            segment.pop("bbox", None)
    return content


def coco_source(name: str, coco: Path) -> CocoSource:
    """Return the source of a data set in ``COCO_PANOPTIC``, with files in the folder ``coco``."""
    images, pngs, annotations = COCO_PANOPTIC[name]
    split = PanopticSplit(
        coco / images, coco / f"annotations/panoptic_{annotations}.json", coco / pngs
    )
    instances = coco / f"annotations/instances_{annotations}.json"
    return CocoSource(name, split, hides=True, instances_json=instances)
