"""Draw data sets whose facts are known, and write them with their data files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, write_data_file
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png

KINDS = {1: ("cell", 1), 2: ("ground", 0)}  # category id -> name, isthing


def write_semantic(
    folder: Path, labels: Sequence[np.ndarray], splits=("train", "val"), channels=3, **keys
) -> Path:
    """Write a semantic data set with classes a and b, and return its data file."""
    for place, truth in enumerate(labels):
        for part in ("images", "labels"):
            (folder / part).mkdir(exist_ok=True)
        photo = np.random.default_rng(place).integers(0, 256, (*truth.shape, channels))
        photo = photo.astype(np.uint8).squeeze()
        Image.fromarray(photo).save(folder / f"images/{place}.png")
        Image.fromarray(truth).save(folder / f"labels/{place}.png")
    split = SemanticSplit(folder / "images", folder / "labels")
    more = {"channels": channels, "classes": ["a", "b"], **keys}
    write_data_file(folder / "drawn.yaml", "drawn", dict.fromkeys(splits, split), **more)
    return folder / "drawn.yaml"


def write_panoptic(
    folder: Path, images: Sequence[tuple[np.ndarray, Mapping[int, int]]], stuff=True
) -> Path:
    """
    Write a panoptic data set of cells and ground, and return its data file.

    Each image has the ids of its pixels, and the category of each id.
    """
    content = {"images": [], "annotations": [], "categories": []}
    for category, (name, isthing) in KINDS.items():
        if isthing or stuff:
            content["categories"].append({"id": category, "name": name, "isthing": isthing})
    for place, (ids, kinds) in enumerate(images):
        for part in ("images", "pngs"):
            (folder / part).mkdir(exist_ok=True)
        Image.fromarray((ids % 251).astype(np.uint8)).save(folder / f"images/{place}.png")
        write_panoptic_png(folder / f"pngs/{place}.png", ids)
        file = {"file_name": f"{place}.png"}
        size = {"height": ids.shape[0], "width": ids.shape[1]}
        content["images"].append({"id": place, **file, **size})
        segments = [{"id": i, "category_id": kind} for i, kind in kinds.items()]
        annotation = {"image_id": place, **file, "segments_info": segments}
        content["annotations"].append(annotation)
    (folder / "panoptic.json").write_text(json.dumps(content))
    split = PanopticSplit(folder / "images", folder / "panoptic.json", folder / "pngs")
    write_data_file(folder / "drawn.yaml", "drawn", {"train": split, "val": split})
    return folder / "drawn.yaml"


def cells(height: int, width: int, side: int, period: int) -> tuple[np.ndarray, dict[int, int]]:
    """Return a panoptic map of square cells on ground, and the category of each segment."""
    rows, columns = np.mgrid[:height, :width]
    inside = (rows % period < side) & (columns % period < side)
    numbers = rows // period * -(-width // period) + columns // period + 2
    ids = np.where(inside, numbers, 1)
    return ids, {1: 2, **{int(i): 1 for i in np.unique(ids) if i > 1}}
