"""The scenes in ``exports/`` and others like them, and their comparison with imports."""

from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from generate_scenes import CATEGORIES, draw_scene
from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment
from ocr_panoptic.workbench.importing.kinds import Kinds
from ocr_panoptic.workbench.importing.masks import masks_of_map

EXPORTS = Path(__file__).parents[1] / "workbench/importing/exports"
IMAGES = EXPORTS / "images"
NAMES = {category["id"]: category["name"] for category in CATEGORIES}
KINDS = Kinds(
    *(tuple(c["name"] for c in CATEGORIES if c["isthing"] == isthing) for isthing in (1, 0))
)


def scene(seed: int, folder: Path, size: int = 96) -> tuple[AnnotatedImage, np.ndarray]:
    """A drawn scene, its image written to the folder, and its map of segments, int32 [H,W], with
    ids 1, 2, ... in the order of the segments. It is not square."""
    pixels, ids, segments = draw_scene(np.random.default_rng(seed), size)
    rows = slice(size // 8, -size // 16)
    name = f"{seed:03d}.png"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[rows]).save(folder / name)
    masks = dict(masks_of_map(ids[rows]))
    listed, numbers = [], np.zeros_like(ids[rows])
    for segment in segments:
        if segment["id"] in masks:
            listed.append(Segment(NAMES[segment["category_id"]], masks[segment["id"]]))
            numbers[ids[rows] == segment["id"]] = len(listed)
    return AnnotatedImage(folder / name, name, *numbers.shape, listed), numbers


def outlines(pixels: np.ndarray) -> list[list[list[float]]]:
    """Polygons [[x, y], ...] along the edges of a mask's pixels, holes left out, of bool [H,W]."""
    fine = np.kron(pixels, np.ones((4, 4), bool)).astype(np.uint8)
    found, _ = cv2.findContours(fine, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return [((corners[:, 0] + 0.5) / 4).tolist() for corners in found]


def has_holes(pixels: np.ndarray) -> bool:
    _, levels = cv2.findContours(pixels.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    return bool((levels[0, :, 3] >= 0).any())
