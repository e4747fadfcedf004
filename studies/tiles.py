"""
Generate images of tiles under unknown light, where a pixel's colour does not show its class.

Tiles cover the image. Each tile has one of K materials, which differ only in hue; the hues are
evenly spaced on the colour circle. Each tile bears a bright stamp, whose hue is the same on all
materials. The light turns all hues of an image by one random angle, uniform in +-180 degrees times
the difficulty d. A classifier that sees single pixels is then right on a share of 1 / max(1, d K)
of the pixels outside the stamps: on all pixels if d = 0, and on 1 / K (chance) if d = 1. The angle
between the hues of a tile and its stamp always shows the material, but few pixels of a tile are
near the stamp.

    python -m studies.tiles --materials 8 [--difficulty 0.5] [--output FOLDER] [--train 400]

An image depends only on the seed, the split, its index, the size, the number of materials and the
difficulty: equal arguments give identical files.

In shapes, S is the side of the square image.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datasets"))

from generate_scenes import Canvas, check_splits
from ocr_panoptic.data.data_file import SemanticSplit, write_data_file
from ocr_panoptic.data.places import datasets_root
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.program import run_program
from ocr_panoptic.progress import imap_with_progress

# Sizes of tiles and stamps, as shares of the image's side.
HEIGHT, WIDTHS, STAMP = 0.4, (0.32, 0.5), 0.13

TILE_LEVELS, STAMP_LEVEL = (80.0, 105.0), 150.0  # brightness
# Distance from grey, as a share of the brightness. Hues are angles in the plane of these two
# directions, which are at right angles to grey and to each other.
SATURATION = 0.6
HUE_PLANE = np.array([[2, -1, -1], [0, 3**0.5, -(3**0.5)]]) / 6**0.5


def generate_tiles(
    output: Path,
    num_train: int,
    num_val: int,
    size: int,
    seed: int,
    materials: int,
    difficulty: float,
) -> None:
    """
    Write images of tiles, their labels and a data file for semantic segmentation into a folder.

    The files are ``output/raw/{train,val}/{images/*.jpg, semantic/*.png}``, and the data file is
    named after the folder.

    Args:
        output: folder to write into.
        num_train, num_val: number of training and validation images.
        size: side of the images in pixels.
        seed: seed of the random numbers.
        materials: number of materials, which are the classes.
        difficulty: how much the light varies, from 0 to 1.
    """
    check_splits(output, num_train, num_val, seed)
    if size < 48:
        raise UserError(f"--size is {size} pixels, tiles need at least 48 to be wider than stamps.")
    if not 2 <= materials <= 255:
        raise UserError(f"--materials is {materials}, labels of 8 bits hold 2 to 255.")
    if not 0 <= difficulty <= 1:
        raise UserError(f"--difficulty is {difficulty}, it goes from 0 to 1.")
    draw = partial(draw_tiles, size=size, materials=materials, difficulty=difficulty)
    for number, (split, count) in enumerate([("train", num_train), ("val", num_val)]):
        root = output / "raw" / split
        (root / "images").mkdir(parents=True, exist_ok=True)
        write = partial(_write, root=root, split=split, seed=(seed, number), draw=draw)
        list(imap_with_progress(write, range(count), f"{split} tiles"))
    colours = under_light(material_hues(materials), np.array(TILE_LEVELS[1])).round().astype(int)
    classes = [
        {"name": f"material {k}", "color": colour.tolist()} for k, colour in enumerate(colours)
    ]
    splits = {
        split: SemanticSplit(output / "raw" / split / "images", output / "raw" / split / "semantic")
        for split in ("train", "val")
    }
    name = output.resolve().name
    write_data_file(output / f"{name}.yaml", name, splits, classes=classes)


def draw_tiles(
    rng: np.random.Generator, size: int, materials: int, difficulty: float
) -> tuple[np.ndarray, np.ndarray]:
    """
    Draw an image of tiles under a random light.

    Args:
        rng: source of random numbers.
        size: side S of the image in pixels.
        materials: number of materials, K.
        difficulty: how much the light varies, from 0 to 1.

    Returns:
        image uint8 [S, S, 3] (RGB), labels uint8 [S, S] in 0..K - 1
    """
    light = rng.uniform(-np.pi, np.pi) * difficulty
    labels, level, stamps = lay_tiles(rng, size, materials)
    hue = np.where(stamps, 0, material_hues(materials)[labels])
    canvas = Canvas(rng, size)
    roughness = 1 + 0.06 * canvas.noise((size / 4, size / 4)) + 0.06 * canvas.noise((5, 5))
    colour = under_light(hue + light, level * roughness)
    grain = rng.normal(0, 2.5, colour.shape)
    return np.clip(colour + grain, 0, 255).round().astype(np.uint8), labels


def lay_tiles(
    rng: np.random.Generator, size: int, materials: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Lay out tiles of random materials, each with a stamp, on a square of ``size`` pixels.

    Returns:
        label of each pixel, uint8; brightness of each pixel, float64 in 0..255; mask of the stamps,
        bool; all [S, S] with S = ``size``
    """
    labels = np.zeros((size, size), np.uint8)
    level = np.zeros((size, size))
    stamps = np.zeros((size, size), bool)
    side = round(STAMP * size)
    bottom = rng.uniform(0, HEIGHT)
    while bottom < 1 + HEIGHT:
        right = rng.uniform(0, WIDTHS[1])
        left = right - WIDTHS[1]
        while left < 1:
            # The part of the tile inside the image.
            rows, columns = (
                slice(max(0, round(start * size)), round(end * size))
                for start, end in ((bottom - HEIGHT, bottom), (left, right))
            )
            labels[rows, columns] = rng.integers(materials)
            level[rows, columns] = rng.uniform(*TILE_LEVELS)
            stamp = stamps[rows, columns]
            row, column = (rng.integers(max(1, length - side + 1)) for length in stamp.shape)
            stamp[row : row + side, column : column + side] = True
            left, right = right, right + rng.uniform(*WIDTHS)
        bottom += HEIGHT
    level[stamps] = STAMP_LEVEL
    return labels, level, stamps


def material_hues(materials: int) -> np.ndarray:
    """Return the hue of each material in radians, float64 [materials]."""
    return np.arange(materials) * 2 * np.pi / materials


def under_light(hue: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return RGB, float64 [..., 3], for hue [...] in radians and brightness [...] in 0..255."""
    direction = np.stack([np.cos(hue), np.sin(hue)], axis=-1) @ HUE_PLANE
    return level[..., None] * (1 + SATURATION * direction)


Draw = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _write(index: int, root: Path, split: str, seed: tuple[int, ...], draw: Draw) -> None:
    image, labels = draw(np.random.default_rng([*seed, index]))
    stem = f"{split}_{index:05d}"
    Image.fromarray(image).save(root / "images" / f"{stem}.jpg", quality=92, subsampling=0)
    write_label_png(root / "semantic" / f"{stem}.png", labels)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m studies.tiles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = datasets_root() / "tiles"
    parser.add_argument("--output", type=Path, default=folder, help=f"by default {folder}")
    parser.add_argument("--train", type=int, default=400, help="training images (400)")
    parser.add_argument("--val", type=int, default=60, help="validation images (60)")
    parser.add_argument("--size", type=int, default=160, help="side of the images in pixels (160)")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal bytes")
    parser.add_argument("--materials", type=int, required=True, help="number of classes")
    parser.add_argument("--difficulty", type=float, default=1.0, help="0 to 1 (1)")
    args = parser.parse_args(argv)
    shape = (args.train, args.val, args.size, args.seed)
    generate_tiles(args.output, *shape, args.materials, args.difficulty)


if __name__ == "__main__":
    run_program(main)
