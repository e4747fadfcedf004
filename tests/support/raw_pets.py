"""A data set of two small images in COCO panoptic format, for tests to corrupt."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, write_data_file
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png

CAT, SKY, DOG, GRASS = 4, 7, 9, 30  # neither contiguous nor sorted by kind

CATEGORIES = [
    {"id": CAT, "name": "cat", "isthing": 1, "color": [200, 0, 0]},
    {"id": GRASS, "name": "grass", "isthing": 0, "color": [0, 200, 0]},
    {"id": SKY, "name": "sky", "isthing": 0, "color": [0, 0, 200]},
    {"id": DOG, "name": "dog", "isthing": 1, "color": [200, 200, 0]},
]

# Segment ids of 6 x 8 pixels; 0 is void.
FIRST = np.array(
    [
        [70000, 70000, 70000, 70000, 70000, 70000, 70000, 0],
        [70000, 70000, 500, 500, 70000, 70000, 70000, 0],
        [70000, 500, 500, 500, 500, 70000, 70000, 70000],
        [3, 3, 500, 900, 900, 3, 3, 3],
        [3, 3, 3, 900, 900, 3, 3, 3],
        [3, 3, 3, 3, 3, 3, 3, 0],
    ]
)
FIRST_SEGMENTS = [
    {"id": 70000, "category_id": SKY, "iscrowd": 0, "area": 16, "bbox": [0, 0, 8, 3]},
    {"id": 3, "category_id": GRASS, "iscrowd": 0, "area": 18, "bbox": [0, 3, 8, 3]},
    {"id": 500, "category_id": DOG, "iscrowd": 0, "area": 7, "bbox": [1, 1, 4, 3]},
    {"id": 900, "category_id": CAT, "iscrowd": 1, "area": 4, "bbox": [3, 3, 2, 2]},
]
# 4 x 5 pixels, not a JPEG, in a sub-folder.
SECOND = np.array([[9] * 5, [9] * 5, [12, 12, 0, 9, 9], [12, 12, 0, 9, 9]])
SECOND_SEGMENTS = [
    {"id": 9, "category_id": SKY, "iscrowd": 0, "area": 14, "bbox": [0, 0, 5, 4]},
    {"id": 12, "category_id": CAT, "iscrowd": 0, "area": 4, "bbox": [0, 2, 2, 2]},
]


class RawData:
    """A folder of images and panoptic PNGs; :meth:`save` writes ``content`` to panoptic.json."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.content = {"images": [], "annotations": [], "categories": CATEGORIES}
        self.add(21, "first.jpg", "first.png", FIRST, FIRST_SEGMENTS)
        self.add(5, "more/second.bmp", "more/second.png", SECOND, SECOND_SEGMENTS)

    def add(self, number, image_name, png_name, ids, segments):
        height, width = ids.shape
        self.content["images"].append(
            {"id": number, "file_name": image_name, "height": height, "width": width}
        )
        self.content["annotations"].append(
            {"image_id": number, "file_name": png_name, "segments_info": segments}
        )
        self.content = json.loads(json.dumps(self.content))  # tests share no list
        noise = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
        for path in (self.image(image_name), self.png(png_name)):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(self.image(image_name))
        write_panoptic_png(self.png(png_name), ids)
        self.save()

    def image(self, name: str) -> Path:
        return self.folder / "images" / name

    def png(self, name: str) -> Path:
        return self.folder / "panoptic" / name

    def save(self) -> "RawData":
        (self.folder / "panoptic.json").write_text(json.dumps(self.content))
        return self

    @property
    def split(self) -> PanopticSplit:
        return PanopticSplit(
            self.folder / "images", self.folder / "panoptic.json", self.folder / "panoptic"
        )

    def described(self, name: str = "pets", **others: "RawData") -> Path:
        """Write a data file of splits "train" (this folder) and ``others``; return its path."""
        splits = {s: raw.save().split for s, raw in {"train": self, **others}.items()}
        write_data_file(self.folder / f"{name}.yaml", name, splits)
        return self.folder / f"{name}.yaml"

    def checked(self, name: str = "pets", **others: "RawData") -> None:
        """Write the data file of :meth:`described`, check it and register the data sets."""
        file = self.described(name, **others)
        check_data(file, workers=1)
        register_data_sets(file)
