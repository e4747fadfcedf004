"""Miniatures of published panoptic data sets: their layouts, names and ids, made as theirs are."""

import json
from pathlib import Path

import numpy as np
from cityscapesscripts.helpers.labels import id2label
from cityscapesscripts.preparation.createPanopticImgs import convert2panoptic
from detectron2.data.datasets.builtin_meta import ADE20K_SEM_SEG_CATEGORIES
from PIL import Image

from ocr_panoptic.formats.coco_panoptic import write_panoptic_png

SIZE = (64, 128)
FRAMES = {
    "train": ["aachen_000000_000019", "zurich_000121_000019"],
    "val": ["munster_000173_000019", "frankfurt_000001_000019"],
}
# Of SceneParse150's labels 0..149, those that have instances (InstanceSegmentation100's).
ADE20K_STUFF = (
    *(0, 1, 2, 3, 4, 5, 6, 9, 11, 13, 16, 17, 21, 25, 26, 28, 29, 34, 40, 46, 48, 51, 52, 54),
    *(59, 60, 61, 63, 68, 77, 79, 84, 91, 94, 96, 99, 100, 101, 105, 106, 109, 113, 114, 117),
    *(122, 128, 131, 140, 141, 145),
)


def write_cityscapes(root: Path) -> None:
    """``leftImg8bit``, ``gtFine`` and what cityscapesscripts makes of it."""
    rng = np.random.default_rng(0)
    for split, frames in FRAMES.items():
        for frame in frames:
            city = frame.partition("_")[0]
            write_image(
                root / f"cityscapes/leftImg8bit/{split}/{city}/{frame}_leftImg8bit.png", rng
            )
            png = root / f"cityscapes/gtFine/{split}/{city}/{frame}_gtFine_instanceIds.png"
            png.parent.mkdir(parents=True)
            Image.fromarray(city_instances(rng)).save(png)
    convert2panoptic(str(root / "cityscapes/gtFine"), setNames=list(FRAMES))


def city_instances(rng: np.random.Generator) -> np.ndarray:
    """uint16 [H, W] of every label: label ids, and label id * 1000 + number of the instance."""
    labels = [number for number in sorted(id2label) if number >= 0]
    ids = rng.choice(np.array(labels, np.uint16), (8, 16))
    ids.ravel()[: len(labels)] = rng.permutation(labels)  # groups of things among them
    ids = np.kron(ids, np.ones((8, 8), np.uint16))
    things = [number for number in labels if id2label[number].hasInstances]
    for number, label in enumerate(rng.choice(things, 12)):
        top, left = rng.integers(0, 48), rng.integers(0, 100)
        ids[top : top + rng.integers(6, 16), left : left + rng.integers(8, 28)] = (
            1000 * label + number
        )
    return ids


def write_ade20k(root: Path) -> None:
    """Images, and PNGs and JSON as Mask2Former's preparation writes them: stuff first, with its
    area before the things lie over it; in each image a segment of stuff is hidden."""
    rng = np.random.default_rng(1)
    folder = root / "ADEChallengeData2016"
    categories = [
        {"id": k, "name": name, "isthing": int(k not in ADE20K_STUFF), "color": [k, 9, 0]}
        for k, name in enumerate(ADE20K_SEM_SEG_CATEGORIES)
    ]
    for split, images in (("train", "training"), ("val", "validation")):
        content = {"images": [], "annotations": [], "categories": categories}
        for number in (1, 2):
            name = f"ADE_{split}_{number:08d}"
            write_image(folder / f"images/{images}/{name}.jpg", rng)
            ids, segments = ade20k_image(rng)
            write_panoptic_png(folder / f"ade20k_panoptic_{split}/{name}.png", ids)
            height, width = SIZE
            content["images"].append(
                {"id": name, "file_name": f"{name}.jpg", "width": width, "height": height}
            )
            content["annotations"].append(
                {"image_id": name, "file_name": f"{name}.png", "segments_info": segments}
            )
        (folder / f"ade20k_panoptic_{split}.json").write_text(json.dumps(content))


def ade20k_image(rng: np.random.Generator) -> tuple[np.ndarray, list[dict]]:
    ids, segments = np.zeros(SIZE, np.int64), []

    def draw(category: int, box: tuple[slice, slice]) -> None:
        mask = np.zeros(SIZE, bool)
        mask[box] = True
        number = 1000 + 7 * len(segments)
        ids[mask] = number
        rows, columns = np.nonzero(mask.any(axis=1))[0], np.nonzero(mask.any(axis=0))[0]
        box = [columns[0], rows[0], np.ptp(columns) + 1, np.ptp(rows) + 1]
        segments.append(
            {
                "id": number,
                "category_id": int(category),
                "area": int(mask.sum()),
                "bbox": list(map(int, box)),
                "iscrowd": 0,
            }
        )

    stuff = rng.choice(ADE20K_STUFF, 3, replace=False)
    things = rng.choice(np.setdiff1d(np.arange(150), ADE20K_STUFF), 3)
    draw(stuff[0], np.s_[:30, :])
    draw(stuff[1], np.s_[30:60, :])
    draw(stuff[2], np.s_[40:44, 40:50])
    draw(things[0], np.s_[38:50, 36:60])
    draw(things[1], np.s_[20:40, 80:110])
    draw(things[2], np.s_[25:33, 5:20])
    return ids, segments


def write_image(path: Path, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (*SIZE, 3), np.uint8)).save(path)
