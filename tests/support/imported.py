"""Read the import tests' scenes and the segments that an import writes, and compare them."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.workbench.importing.import_plan import AnnotationSource, ImportPlan
from ocr_panoptic.workbench.importing.importing import import_annotations

FIXTURES = Path(__file__).parents[1] / "workbench/importing/fixtures"
SCENES = FIXTURES / "scenes"


class Region(NamedTuple):
    label: str
    is_thing: bool
    is_crowd: bool
    pixels: np.ndarray  # bool [H, W]


def read_maps(json_file: Path, pngs: Path) -> dict[str, list[Region]]:
    """Return the segments of each image in a panoptic JSON, by the image name without suffix."""
    content = json.loads(json_file.read_text())
    kinds = {c["id"]: (c["name"], bool(c["isthing"])) for c in content["categories"]}
    names = {image["id"]: Path(image["file_name"]).stem for image in content["images"]}
    maps = {}
    for annotation in content["annotations"]:
        ids = read_panoptic_png(pngs / annotation["file_name"])
        maps[names[annotation["image_id"]]] = [
            Region(*kinds[s["category_id"]], bool(s["iscrowd"]), ids == s["id"])
            for s in annotation["segments_info"]
        ]
    return maps


def scenes() -> dict[str, list[Region]]:
    return read_maps(SCENES / "panoptic.json", SCENES / "panoptic")


def run_import(
    root: Path, source: AnnotationSource, plan: ImportPlan, name: str = "scenes"
) -> dict[str, list[Region]]:
    import_annotations(name, {"train": source}, plan, root / name, workers=1)
    raw = root / name / "raw/train"
    return read_maps(raw / "panoptic.json", raw / "panoptic")


def stuff_labels(folder: Path) -> list[str]:
    """
    Write label PNGs of the scenes' stuff, and return the names of the stuff classes.

    Pixels of things have label 0 (the first stuff class), crowds and void have label 255.
    """
    categories = json.loads((SCENES / "panoptic.json").read_text())["categories"]
    stuff = [category["name"] for category in categories if not category["isthing"]]
    for name, regions in scenes().items():
        labels = np.full((64, 64), 255, np.uint8)
        for region in regions:
            if not region.is_crowd:
                below = 0 if region.is_thing else stuff.index(region.label)
                labels[region.pixels] = below
        write_label_png(folder / f"{name}.png", labels)
    return stuff


def as_set(regions: list[Region], crowds: bool = True) -> set[tuple]:
    """Return the segments as a set without ids and, if not ``crowds``, without crowd flags."""
    return {(r.label, r.is_thing, crowds and r.is_crowd, r.pixels.tobytes()) for r in regions}


def iou(a: np.ndarray, b: np.ndarray) -> float:
    return (a & b).sum() / (a | b).sum()
