"""Annotations of small images in several formats, as their tools write them."""

import base64
import io
import zlib

import numpy as np
from PIL import Image
from pycocotools import mask as rle


def coco(
    *annotations: dict,
    size: tuple[int, int],
    names: tuple[str, ...] = ("a.png",),
    classes: tuple[str, ...] = ("dog", "sky"),
    **others: object,
) -> dict:
    """Return the content of a COCO JSON. All ids are 1, 2, ...; an annotation is of the first class
    in the first image, if it does not say another."""
    own = {"image_id": 1, "category_id": 1, "iscrowd": 0}
    images = [{"file_name": name, "height": size[0], "width": size[1]} for name in names]
    content = {
        "images": images,
        "annotations": [own | annotation for annotation in annotations],
        "categories": [{"name": name} for name in classes],
    }
    numbered = {
        key: [{"id": number, **entry} for number, entry in enumerate(entries, 1)]
        for key, entries in content.items()
    }
    return numbered | others


def run_lengths(pixels: np.ndarray) -> dict:
    """Return a mask as pycocotools writes it."""
    code = rle.encode(np.asfortranarray(pixels, np.uint8))
    return {"size": code["size"], "counts": code["counts"].decode()}


def bitmap(pixels: np.ndarray, label: str = "ball", **changes: object) -> dict:
    """Return a figure of Supervisely whose upper left corner lies at x 60, y 2."""
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8) * 255).save(file, "PNG")
    data = base64.b64encode(zlib.compress(file.getvalue())).decode()
    shape = {"data": data, "origin": [60, 2]} | changes
    return {"classTitle": label, "geometryType": "bitmap", "bitmap": shape}


def city_polygons(*objects: object, size: tuple[int, int], **changes: object) -> dict:
    """Return the content of a JSON of Cityscapes."""
    return {"imgHeight": size[0], "imgWidth": size[1], "objects": objects} | changes
