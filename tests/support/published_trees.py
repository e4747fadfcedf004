"""Write tiny versions of published panoptic data sets, with the original layouts and ids."""

from pathlib import Path

import numpy as np
from cityscapesscripts.helpers.labels import id2label
from cityscapesscripts.preparation.createPanopticImgs import convert2panoptic
from PIL import Image

SIZE = (64, 128)
FRAMES = {
    "train": ["aachen_000000_000019", "zurich_000121_000019"],
    "val": ["munster_000173_000019", "frankfurt_000001_000019"],
}
# Instance category 1..100 -> label 1..150, the release's categoryMapping.txt.
ADE20K_MAPPING = (
    *(8, 9, 11, 13, 15, 16, 19, 20, 21, 23, 24, 25, 28, 31, 32, 33, 34, 36, 37, 38, 39, 40, 42),
    *(43, 44, 45, 46, 48, 50, 51, 54, 56, 57, 58, 59, 63, 65, 66, 67, 68, 70, 71, 72, 73, 74, 75),
    *(76, 77, 79, 81, 82, 83, 84, 86, 87, 88, 89, 90, 91, 93, 94, 96, 98, 99, 103, 104, 105, 108),
    *(109, 111, 112, 113, 116, 117, 119, 120, 121, 122, 124, 125, 126, 127, 128, 130, 131, 133),
    *(134, 135, 136, 137, 138, 139, 140, 143, 144, 145, 147, 148, 149, 150),
)


def write_cityscapes(root: Path) -> None:
    """Write Cityscapes' images and labels, and the panoptic files that cityscapesscripts makes."""
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
    """Return ids, uint16 [H, W]: every label id, and 1000 * label id + number at instances."""
    labels = [number for number in sorted(id2label) if number >= 0]
    ids = rng.choice(np.array(labels, np.uint16), (8, 16))
    ids.ravel()[: len(labels)] = rng.permutation(labels)  # also groups of things
    ids = np.kron(ids, np.ones((8, 8), np.uint16))
    things = [number for number in labels if id2label[number].hasInstances]
    for number, label in enumerate(rng.choice(things, 12)):
        top, left = rng.integers(0, 48), rng.integers(0, 100)
        ids[top : top + rng.integers(6, 16), left : left + rng.integers(8, 28)] = (
            1000 * label + number
        )
    return ids


def write_ade20k(root: Path) -> None:
    rng = np.random.default_rng(1)
    folder = root / "ADEChallengeData2016"
    for split, images in (("train", "training"), ("val", "validation")):
        for number in (1, 2):
            name = f"ADE_{split}_{number:08d}"
            write_image(folder / f"images/{images}/{name}.jpg", rng)
            labels, instances = ade20k_image(rng)
            for kind, pixels in (("annotations", labels), ("annotations_instance", instances)):
                path = folder / kind / images / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)


def ade20k_image(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """
    Return labels, uint8 [H, W], and instances, uint8 [H, W, 3], which disagree as in ADE20K.

    A labelled thing has no instance, and the edges of instances differ from the labels' edges.
    """
    stuff = rng.choice(np.setdiff1d(np.arange(1, 151), ADE20K_MAPPING), 3, replace=False)
    categories = rng.choice(100, 2, replace=False) + 1
    labels, instances = np.zeros(SIZE, np.uint8), np.zeros((*SIZE, 3), np.uint8)
    labels[:30], labels[30:60], labels[40:44, 40:50] = stuff
    labels[2:5, 100:120] = ADE20K_MAPPING[categories[0] - 1]
    for number, (category, box) in enumerate(
        [
            (categories[0], np.s_[38:50, 36:60]),
            (categories[0], np.s_[20:40, 80:110]),
            (categories[1], np.s_[25:33, 5:20]),
        ],
        1,
    ):
        instances[box] = category, number, 99
        labels[box][2:] = ADE20K_MAPPING[category - 1]  # the labels end elsewhere
    return labels, instances


def write_image(path: Path, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (*SIZE, 3), np.uint8)).save(path)
