"""COCO 2017 for Panoptic-FPN as it is downloaded.

Detectron2's ``coco_2017_{train,val,val_100}_panoptic_separated`` want semantic PNGs that its
``datasets/prepare_panoptic_fpn.py`` writes. Here, under the same names, labels follow from the
panoptic PNGs; instances are those of COCO's own ``instances_*.json``, as in Detectron2.
"""

import json
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES, _get_builtin_metadata
from detectron2.data.datasets.coco import load_coco_json
from detectron2.structures import BoxMode

from ocr_panoptic.data.data_file import PanopticSplit
from ocr_panoptic.data.faults import DataFaults, first_few, raise_if_any
from ocr_panoptic.data.fingerprint import file_state
from ocr_panoptic.data.index import Index, Row
from ocr_panoptic.data.panoptic.annotations import (
    Category,
    PanopticJson,
    panoptic_metadata,
    parse_categories,
)
from ocr_panoptic.data.panoptic.source import CategoryKinds, PanopticSource
from ocr_panoptic.errors import MissingFileError

# Split -> the folders of images and of PNGs. The last are 100 images of val2017.
FOLDERS = {
    "train": ("train2017", "panoptic_train2017", "train2017"),
    "val": ("val2017", "panoptic_val2017", "val2017"),
    "val_100": ("val2017", "panoptic_val2017", "val2017_100"),
}
COCO_PANOPTIC = {f"coco_2017_{split}_panoptic_separated": names for split, names in FOLDERS.items()}


@dataclass(frozen=True)
class CocoSource(PanopticSource):
    """Panoptic data whose instances are in a JSON of their own, in COCO's format.

    Attributes:
        instances_json: that JSON.
    """

    instances_json: Path = Path()

    def key(self) -> list:
        return [*super().key(), str(self.instances_json)]

    def state(self) -> list:
        return [*super().state(), file_state(self.instances_json)]

    def content(self) -> PanopticJson:
        return coco_segments(super().content())

    def categories(self, index: Index) -> list[Category]:
        return coco_categories()

    def read(self) -> tuple[dict, Iterator[Row]]:
        if not self.instances_json.is_file():
            raise MissingFileError(f"{self.instances_json}: instance JSON not found.")
        return super().read()

    def _rows(self, content: PanopticJson, things: Container[int]) -> Iterator[Row]:
        class_of = panoptic_metadata(coco_categories())["thing_dataset_id_to_contiguous_id"]
        try:
            loaded = load_coco_json(str(self.instances_json), str(self.split.images))
        except (AssertionError, KeyError, TypeError, AttributeError, ValueError) as error:
            fault = (
                f"{self.instances_json}: is not COCO's instance JSON ({type(error).__name__}: "
                f"{error}). Download it again."
            )
            raise DataFaults([fault]) from error
        own = {record["image_id"]: record["annotations"] for record in loaded}
        images = {image.id for image in content.images}
        if foreign := sorted(own.keys() ^ images):
            raise DataFaults(
                [
                    f"{self.instances_json}: {len(foreign)} images are in it alone or in "
                    f"{content.path} alone: {first_few(list(map(str, foreign)))}."
                ]
            )
        for row in super()._rows(content, things):
            annotations = own[row.record["id"]]
            for annotation in annotations:
                category = annotation.get("category_id")
                if category not in class_of:
                    raise DataFaults(
                        [
                            f"{self.instances_json}: category {category} of image "
                            f"{row.record['id']} is no thing of COCO's."
                        ]
                    )
                annotation["category_id"] = class_of[category]
            usable = any(not annotation.get("iscrowd", 0) for annotation in annotations)
            record = {**row.record, "annotations": json.dumps(annotations, default=bytes.decode)}
            yield Row(record, row.wide, usable)

    def check(self, record: dict) -> tuple[list[str], list[int]]:
        return super().check({key: v for key, v in record.items() if key != "annotations"})

    def record(self, row: dict, kinds: CategoryKinds) -> dict:
        annotations = json.loads(row["annotations"])
        for annotation in annotations:
            annotation["bbox_mode"] = BoxMode(annotation["bbox_mode"])
        return {**super().record(row, kinds), "annotations": annotations}

    def metadata(self) -> dict:
        return {
            **self.file_metadata(),
            **_get_builtin_metadata("coco_panoptic_separated"),
            "json_file": str(self.instances_json),
        }


def coco_categories() -> list[Category]:
    return parse_categories(COCO_CATEGORIES, "COCO_CATEGORIES")


def coco_segments(content: PanopticJson) -> PanopticJson:
    """Return the segments without the JSON's areas and boxes: the PNG alone counts.

    Raises:
        DataFaults: categories that COCO does not have, or has as another kind.
    """
    known = {category.id: category.isthing for category in coco_categories()}
    raise_if_any(
        [
            f"{content.path}: category {category.id} ({category.name!r}, isthing "
            f"{int(category.isthing)}) is none of COCO's. Describe data of your own in a data file."
            for category in content.categories
            if known.get(category.id) != category.isthing
        ]
    )
    images = [
        replace(
            image,
            segments=[
                {key: value for key, value in segment.items() if key not in ("area", "bbox")}
                for segment in image.segments
            ],
        )
        for image in content.images
    ]
    return replace(content, images=images)


def coco_source(name: str, coco: Path) -> CocoSource:
    """Return the records of one of ``COCO_PANOPTIC`` below a folder ``coco``."""
    images, pngs, annotations = COCO_PANOPTIC[name]
    split = PanopticSplit(
        coco / images, coco / f"annotations/panoptic_{annotations}.json", coco / pngs
    )
    instances = coco / f"annotations/instances_{annotations}.json"
    return CocoSource(name, split, hides=True, instances_json=instances)
