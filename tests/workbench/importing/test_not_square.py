"""Width and height are not mixed up: a rectangle in an image of 40x24 pixels, in each format."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from support.annotation_files import bitmap, city_polygons, coco

H, W = 24, 40
TOP, BOTTOM, LEFT, RIGHT = 3, 8, 25, 36
MASK = np.zeros((H, W), bool)
MASK[TOP:BOTTOM, LEFT:RIGHT] = True
EDGES = [(LEFT, TOP), (RIGHT, TOP), (RIGHT, BOTTOM), (LEFT, BOTTOM)]  # around the pixels
CENTRES = [(LEFT, TOP), (RIGHT - 1, TOP), (RIGHT - 1, BOTTOM - 1), (LEFT, BOTTOM - 1)]


def coco_polygon(root: Path) -> tuple[Path, Path]:
    outline = [value for corner in EDGES for value in corner]
    (root / "a.json").write_text(json.dumps(coco({"segmentation": [outline]}, size=(H, W))))
    return root / "a.json", root / "images"


def yolo(root: Path) -> tuple[Path, None]:
    (root / "data.yaml").write_text("names: [dog]\ntrain: images\n")
    (root / "labels").mkdir()
    shares = " ".join(f"{x / W} {y / H}" for x, y in EDGES)
    (root / "labels/a.txt").write_text(f"0 {shares}\n")
    return root / "data.yaml", None


def supervisely(root: Path, figure: dict) -> tuple[Path, None]:
    (root / "ann").mkdir()
    (root / "images").rename(root / "img")
    (root / "meta.json").write_text('{"classes": [{"title": "dog"}]}')
    content = {"size": {"height": H, "width": W}, "objects": [{"classTitle": "dog"} | figure]}
    (root / "ann/a.png.json").write_text(json.dumps(content))
    return root, None


def supervisely_polygon(root: Path) -> tuple[Path, None]:
    exterior = [(x - 0.4, y + 0.4) for x, y in CENTRES]  # it rounds to whole pixels
    return supervisely(root, {"geometryType": "polygon", "points": {"exterior": exterior}})


def supervisely_bitmap(root: Path) -> tuple[Path, None]:
    part = MASK[TOP:BOTTOM, LEFT:RIGHT]
    return supervisely(root, bitmap(part, "dog", origin=[LEFT, TOP]))


def cityscapes(root: Path) -> tuple[Path, Path]:
    write_label_png(root / "a_gtFine_instanceIds.png", np.uint16(26000) * MASK)
    return root, root / "images"


def cityscapes_polygons(root: Path) -> tuple[Path, Path]:
    content = city_polygons({"label": "dog", "polygon": CENTRES}, size=(H, W))
    (root / "a_gtFine_polygons.json").write_text(json.dumps(content))
    return root, root / "images"


@pytest.mark.parametrize(
    "format, write",
    [
        ("coco", coco_polygon),
        ("yolo-seg", yolo),
        ("supervisely", supervisely_polygon),
        ("supervisely", supervisely_bitmap),
        ("cityscapes", cityscapes),
        ("cityscapes-polygons", cityscapes_polygons),
    ],
)
def test_an_image_that_is_not_square(tmp_path, format, write):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (W, H)).save(tmp_path / "images/a.png")
    (image,) = ANNOTATION_FORMATS[format].read(*write(tmp_path))
    assert (image.name, image.height, image.width) == ("a.png", H, W)
    (segment,) = image.segments
    assert segment.label == ("car" if format == "cityscapes" else "dog")
    assert segment.instance is not False
    assert np.array_equal(segment.pixels(), MASK)
