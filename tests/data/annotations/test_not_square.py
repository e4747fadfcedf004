"""Width and height are not mixed up: a rectangle in an image of 40x24 pixels, in each format."""

import base64
import io
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.annotations.formats import ANNOTATION_FORMATS
from ocr_panoptic.formats.labels import write_label_png

H, W = 24, 40
TOP, BOTTOM, LEFT, RIGHT = 3, 8, 25, 36
MASK = np.zeros((H, W), bool)
MASK[TOP:BOTTOM, LEFT:RIGHT] = True
EDGES = [(LEFT, TOP), (RIGHT, TOP), (RIGHT, BOTTOM), (LEFT, BOTTOM)]  # around the pixels
CENTRES = [(LEFT, TOP), (RIGHT - 1, TOP), (RIGHT - 1, BOTTOM - 1), (LEFT, BOTTOM - 1)]


def coco(root: Path, segmentation: object) -> tuple[Path, Path]:
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": H, "width": W}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "segmentation": segmentation, "iscrowd": 0}
        ],
        "categories": [{"id": 1, "name": "car"}],
    }
    (root / "a.json").write_text(json.dumps(content))
    return root / "a.json", root / "images"


def coco_polygon(root: Path) -> tuple[Path, Path]:
    return coco(root, [[value for corner in EDGES for value in corner]])


def coco_rle(root: Path) -> tuple[Path, Path]:
    first, gap = LEFT * H + TOP, H - (BOTTOM - TOP)
    counts = [first, *[BOTTOM - TOP, gap] * (RIGHT - LEFT)]
    return coco(root, {"size": [H, W], "counts": [*counts[:-1], H * W - sum(counts[:-1])]})


def yolo(root: Path) -> tuple[Path, None]:
    (root / "data.yaml").write_text("names: [car]\ntrain: images\n")
    (root / "labels").mkdir()
    shares = " ".join(f"{x / W} {y / H}" for x, y in EDGES)
    (root / "labels/a.txt").write_text(f"0 {shares}\n")
    return root / "data.yaml", None


def supervisely(root: Path, figure: dict) -> tuple[Path, None]:
    (root / "ann").mkdir()
    (root / "images").rename(root / "img")
    (root / "meta.json").write_text('{"classes": [{"title": "car"}]}')
    content = {"size": {"height": H, "width": W}, "objects": [{"classTitle": "car"} | figure]}
    (root / "ann/a.png.json").write_text(json.dumps(content))
    return root, None


def supervisely_polygon(root: Path) -> tuple[Path, None]:
    exterior = [(x - 0.4, y + 0.4) for x, y in CENTRES]  # it rounds to whole pixels
    return supervisely(root, {"geometryType": "polygon", "points": {"exterior": exterior}})


def supervisely_bitmap(root: Path) -> tuple[Path, None]:
    file = io.BytesIO()
    Image.new("L", (RIGHT - LEFT, BOTTOM - TOP), 255).save(file, "PNG")
    data = base64.b64encode(zlib.compress(file.getvalue())).decode()
    bitmap = {"data": data, "origin": [LEFT, TOP]}
    return supervisely(root, {"geometryType": "bitmap", "bitmap": bitmap})


def voc(root: Path) -> tuple[Path, Path]:
    write_label_png(root / "SegmentationClass/a.png", np.uint8(7) * MASK)
    write_label_png(root / "SegmentationObject/a.png", np.uint8(1) * MASK)
    return root, root / "images"


def cityscapes(root: Path) -> tuple[Path, Path]:
    write_label_png(root / "a_gtFine_instanceIds.png", np.uint16(26000) * MASK)
    return root, root / "images"


def cityscapes_polygons(root: Path) -> tuple[Path, Path]:
    objects = [{"label": "car", "polygon": CENTRES}]
    content = {"imgHeight": H, "imgWidth": W, "objects": objects}
    (root / "a_gtFine_polygons.json").write_text(json.dumps(content))
    return root, root / "images"


@pytest.mark.parametrize(
    "format, write",
    [
        ("coco", coco_polygon),
        ("coco", coco_rle),
        ("yolo-seg", yolo),
        ("supervisely", supervisely_polygon),
        ("supervisely", supervisely_bitmap),
        ("voc", voc),
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
    assert segment.label == "car" and segment.instance is not False
    assert np.array_equal(segment.pixels(), MASK)
