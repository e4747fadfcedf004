#!/usr/bin/env python
"""
Generate sample data: small scenes in COCO panoptic format, and label PNGs.

A scene is a landscape (stuff: sky, forest, water, sand, grass) with objects on it (things: ball,
crate, tent, starfish) that hide one another. Classes share colours on purpose: water has the blues
of the sky, forest has the greens of grass, and every kind of object comes in several colours. Only
texture, shape and context tell the classes apart.

Some scenes have a cluster of small balls, annotated as one crowd segment. The narrow seams between
neighbouring stuff regions are void, and so are rocks, which have no category.

A scene depends only on its seed, split, index, size and classes: equal arguments give equal bytes.

In shapes, S is the side of the square image.
"""

import argparse
import copy
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, check_name, write_data_file
from ocr_panoptic.data.places import datasets_root
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.files import write_lists
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.formats.segment_runs import SegmentRuns, segment_statistics
from ocr_panoptic.progress import imap_with_progress

# Ids are neither contiguous nor sorted by kind, as in real data sets.
CATEGORIES = [
    {"id": 1, "name": "ball", "isthing": 1, "color": [220, 50, 60]},
    {"id": 2, "name": "crate", "isthing": 1, "color": [150, 95, 40]},
    {"id": 5, "name": "sky", "isthing": 0, "color": [135, 190, 235]},
    {"id": 7, "name": "tent", "isthing": 1, "color": [240, 140, 30]},
    {"id": 11, "name": "forest", "isthing": 0, "color": [30, 90, 45]},
    {"id": 12, "name": "water", "isthing": 0, "color": [40, 110, 180]},
    {"id": 20, "name": "starfish", "isthing": 1, "color": [170, 70, 190]},
    {"id": 31, "name": "sand", "isthing": 0, "color": [225, 200, 140]},
    {"id": 33, "name": "grass", "isthing": 0, "color": [110, 170, 60]},
]
CATEGORY_ID = {category["name"]: category["id"] for category in CATEGORIES}
CLASSES = tuple(CATEGORY_ID)

# Colours of the objects. Some kinds have similar colours.
PALETTES = {
    "ball": [(205, 45, 50), (235, 120, 30), (50, 80, 190), (235, 235, 230)],
    "crate": [(150, 95, 45), (185, 130, 70), (120, 120, 125), (70, 110, 130)],
    "tent": [(240, 150, 40), (215, 60, 60), (60, 90, 180), (150, 60, 140)],
    "starfish": [(235, 95, 105), (240, 190, 50), (165, 75, 185), (245, 150, 60)],
}

CROWD_PROBABILITY = 0.2
ROCK_PROBABILITY = 0.3
SLIVER = 0.001  # share of the image's area


def generate_scenes(
    output: Path,
    num_train: int,
    num_val: int,
    size: int,
    seed: int,
    classes: Sequence[str] = CLASSES,
) -> None:
    """
    Write scenes into a folder, with data files for panoptic and semantic segmentation.

    ``output/raw/train`` and ``output/raw/val`` each get ``images/*.jpg``, ``panoptic/*.png``,
    ``panoptic.json``, and ``semantic/*.png`` with each pixel's label (255 for void). The data files
    are ``output/<name>.yaml`` (panoptic) and ``output/<name>_sem.yaml`` (semantic), where <name> is
    the name of the folder ``output``. ``<name>_sem.yaml`` lists the classes in label order.

    Args:
        output: folder to write into.
        num_train, num_val: number of scenes in each split.
        size: side of the images in pixels, at least 64.
        seed: seed of all scenes.
        classes: names of the categories to draw. They must include "sky", at least one name in
            ``GROUNDS``, and at least one name in ``SHAPES``.
    """
    if size < 64:
        raise UserError(f"--size is {size}; expected at least 64 (pixels).")
    for needed in (("sky",), GROUNDS, tuple(SHAPES)):
        if not {*needed} & {*classes}:
            raise UserError(f"--classes must include {' or '.join(needed)}.")
    check_splits(output, num_train, num_val, seed)
    name, raw, numbers = output.resolve().name, output / "raw", {"train": num_train, "val": num_val}
    categories = [category for category in CATEGORIES if category["name"] in classes]
    for number, (split, count) in enumerate(numbers.items()):
        (raw / split / "images").mkdir(parents=True, exist_ok=True)
        write = partial(
            write_scene, root=raw / split, size=size, seed=(seed, number), categories=categories
        )
        images, annotations = zip(*imap_with_progress(write, range(count), f"{split} scenes"))
        path = raw / split / "panoptic.json"
        write_lists(path, images=images, annotations=annotations, categories=categories)
    panoptic = {
        s: PanopticSplit(raw / s / "images", raw / s / "panoptic.json", raw / s / "panoptic")
        for s in numbers
    }
    write_data_file(output / f"{name}.yaml", name, panoptic)
    semantic = {s: SemanticSplit(raw / s / "images", raw / s / "semantic") for s in numbers}
    labels = [{"name": c["name"], "color": c["color"]} for c in categories]
    write_data_file(output / f"{name}_sem.yaml", f"{name}_sem", semantic, classes=labels)


def check_splits(output: Path, num_train: int, num_val: int, seed: int) -> None:
    """Raise UserError if an argument is invalid or ``output`` has images from a different run."""
    check_name(output.resolve().name)
    if min(num_train, num_val) < 1 or seed < 0:
        raise UserError(
            f"--train {num_train} --val {num_val} --seed {seed}: --train and --val must be at "
            "least 1, and --seed at least 0."
        )
    for split, count in (("train", num_train), ("val", num_val)):
        folder = output / "raw" / split / "images"
        names = {f"{split}_{index:05d}.jpg" for index in range(count)}
        others = sorted({file.name for file in folder.glob("*")} - names)
        if others:
            raise UserError(
                f"{folder} contains {len(others)} image(s) from another run, such as {others[0]}. "
                f"Remove {output / 'raw'}, or choose another --output."
            )


def write_scene(
    index: int, root: Path, size: int, seed: tuple[int, int], categories: Sequence[dict]
) -> tuple[dict, dict]:
    """Write a scene's files; return the scene's "images" and "annotations" for panoptic.json."""
    names = [category["name"] for category in categories]
    pixels, ids, segments = draw_scene(np.random.default_rng([*seed, index]), size, names)
    stem, number = f"{root.name}_{index:05d}", index + 1
    Image.fromarray(pixels).save(root / "images" / f"{stem}.jpg", quality=92)
    write_panoptic_png(root / "panoptic" / f"{stem}.png", ids)
    places = {category["id"]: place for place, category in enumerate(categories)}
    label_of = {segment["id"]: places[segment["category_id"]] for segment in segments}
    labels = SegmentRuns(ids).labels(label_of, VOID_LABEL)
    write_label_png(root / "semantic" / f"{stem}.png", labels)
    return (
        {"id": number, "file_name": f"{stem}.jpg", "height": size, "width": size},
        {"image_id": number, "file_name": f"{stem}.png", "segments_info": segments},
    )


def draw_scene(
    rng: np.random.Generator, size: int, classes: Sequence[str] = CLASSES
) -> tuple[np.ndarray, np.ndarray, list[dict]]:
    """Draw a scene: RGB image uint8 [S, S, 3], segment ids int32 [S, S], and segments_info."""
    canvas = Canvas(rng, size)
    horizon = draw_landscape(canvas, classes)
    if rng.random() < ROCK_PROBABILITY:
        draw_rock(canvas, horizon)
    if rng.random() < CROWD_PROBABILITY and "ball" in classes:
        draw_crowd(canvas, horizon)
    draw_objects(canvas, horizon, [name for name in SHAPES if name in classes])
    return canvas.finish()


class Canvas:
    """An image and its segment ids, painted from back to front."""

    def __init__(self, rng: np.random.Generator, size: int):
        self.rng, self.size = rng, size
        self.y, self.x = np.mgrid[:size, :size].astype(np.float64) + 0.5
        self.colour = np.zeros((size, size, 3))
        self.ids = np.zeros((size, size), np.int32)
        self.segments: list[dict] = []

    def new_segment(self, name: str, iscrowd: int = 0) -> int:
        # Random ids, because readers must accept any ids.
        taken = {segment["id"] for segment in self.segments}
        while (number := int(self.rng.integers(1, 256**3))) in taken:
            pass
        self.segments.append({"id": number, "category_id": CATEGORY_ID[name], "iscrowd": iscrowd})
        return number

    def near(self, x: float, y: float, reach: float) -> "Canvas":
        """
        Return a view of the part of the canvas near (x, y); painting the view paints the canvas.

        The part is a square that extends ``reach`` pixels from (x, y) in each direction.
        """
        part = copy.copy(self)
        rows = slice(max(0, int(y - reach)), max(0, int(y + reach) + 1))
        columns = slice(max(0, int(x - reach)), max(0, int(x + reach) + 1))
        for name in ("y", "x", "colour", "ids"):
            setattr(part, name, getattr(self, name)[rows, columns])  # views, not copies
        return part

    def paint(self, distance: np.ndarray, colour: np.ndarray, segment_id: int) -> None:
        """Paint a shape with smooth edges, given its signed distance [S, S], negative inside."""
        alpha = np.clip(0.5 - distance, 0, 1)[..., None]
        self.colour += alpha * (colour - self.colour)
        self.ids[distance < 0] = segment_id

    def noise(self, cells: tuple[float, float]) -> np.ndarray:
        """Return smooth noise [S, S], mean 0, from a random grid of ``cells`` (rows, columns)."""
        rows, columns = (max(2, round(number)) for number in cells)
        grid = Image.fromarray(self.rng.normal(0, 0.5, (rows, columns)).astype(np.float32))
        return np.asarray(grid.resize((self.size, self.size), Image.Resampling.BICUBIC), float)

    def wave(self, height: float, roughness: float) -> np.ndarray:
        """
        Return the row of a wavy line in each column of the image, float [1, S].

        ``height``, the line's mean position, is 0 at the top and 1 at the bottom of the image.
        """
        line = self.noise((2, 5))[:1] + 0.3 * self.noise((2, 18))[:1]
        return self.size * (height + roughness * line)

    def finish(self) -> tuple[np.ndarray, np.ndarray, list[dict]]:
        light = 1 + self.rng.normal(0, 0.04)
        grain = self.rng.normal(0, 2.5, self.colour.shape)
        image = np.clip(self.colour * light + grain, 0, 255).round().astype(np.uint8)
        # A segment that is hidden except for a sliver is annotated as void.
        statistics = segment_statistics(self.ids)
        slivers = [i for i, seen in statistics.items() if seen.area < SLIVER * self.size**2]
        self.ids[np.isin(self.ids, slivers)] = 0
        segments = [
            {**segment, **statistics[segment["id"]]._asdict()}
            for segment in self.segments
            if segment["id"] in statistics and segment["id"] not in slivers
        ]
        return image, self.ids, segments


def shade(colour: tuple[int, int, int], brightness: np.ndarray) -> np.ndarray:
    """Return an image float64 [S, S, 3]: the colour times each pixel's brightness [S, S]."""
    return np.asarray(colour, float) * brightness[..., None]


# Landscape: the textures of stuff, and the borders between them.


def sky(canvas: Canvas) -> np.ndarray:
    top = np.array(canvas.rng.choice([(90, 150, 220), (115, 175, 235), (70, 120, 190)]), float)
    bottom = np.array([205, 222, 236], float)
    blend = np.clip(canvas.y / (0.55 * canvas.size), 0, 1)[..., None]
    clouds = np.clip(canvas.noise((7, 4)) + 0.4 * canvas.noise((20, 10)) - 0.15, 0, 0.7)[..., None]
    return (top * (1 - blend) + bottom * blend) * (1 - clouds) + 248.0 * clouds


def forest(canvas: Canvas) -> np.ndarray:
    crowns = canvas.noise((canvas.size / 6, canvas.size / 6))
    return shade((45, 95, 50), 1 + 0.35 * crowns + 0.2 * canvas.noise((6, 6)))


def water(canvas: Canvas) -> np.ndarray:
    ripples = canvas.noise((canvas.size / 4, canvas.size / 26))
    depth = 0.82 + 0.25 * canvas.y / canvas.size
    texture = shade((62, 124, 182), depth + 0.16 * ripples)
    return texture + 70 * np.clip(ripples - 0.75, 0, 1)[..., None]


def sand(canvas: Canvas) -> np.ndarray:
    dunes = np.sin(canvas.y / 3.5 + 3 * canvas.noise((4, 4)))
    return shade((222, 197, 142), 1 + 0.03 * dunes + 0.05 * canvas.noise((30, 30)))


def grass(canvas: Canvas) -> np.ndarray:
    blades = canvas.noise((canvas.size / 4, canvas.size / 1.5))
    return shade((105, 160, 62), 1 + 0.16 * blades + 0.14 * canvas.noise((5, 5)))


TEXTURES = {"sky": sky, "forest": forest, "water": water, "sand": sand, "grass": grass}
GROUNDS = ("grass", "sand", "water")


def draw_landscape(canvas: Canvas, classes: Sequence[str]) -> float:
    """Paint sky, forest (sometimes) and ground, with void borders; return the horizon's row."""
    rng, size = canvas.rng, canvas.size
    horizon = rng.uniform(0.3, 0.45)
    far, *near = rng.permutation([name for name in GROUNDS if name in classes])[1::-1]
    borders = [("sky", None)]
    if rng.random() < 0.55 and "forest" in classes:
        borders.append(("forest", canvas.wave(horizon - rng.uniform(0.1, 0.18), 0.04)))
    borders.append((far, canvas.wave(horizon, 0.008)))
    if rng.random() < 0.75 and near:
        borders.append((near[0], canvas.wave(rng.uniform(0.58, 0.72), 0.06)))
    seams = np.zeros((size, size), bool)
    for name, row in borders:
        above = np.full((size, size), -float(size)) if row is None else row - canvas.y
        canvas.paint(above, TEXTURES[name](canvas), canvas.new_segment(name))
        seams |= np.abs(above) < 0.5
    canvas.ids[seams] = 0
    return horizon * size


# Objects: shapes given by signed distances [S, S] in pixels, negative inside.


def polygon_distance(canvas: Canvas, corners: np.ndarray) -> np.ndarray:
    """
    Return each pixel's distance [S, S] in pixels to a polygon's outline, negative inside.

    Args:
        canvas: canvas whose pixels are measured.
        corners: corners [N, 2] of the polygon, (x, y) in pixels.
    """
    squared = np.full(canvas.x.shape, np.inf)
    inside = np.zeros(canvas.x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        px, py, ex, ey = canvas.x - ax, canvas.y - ay, bx - ax, by - ay
        along = np.clip((px * ex + py * ey) / (ex * ex + ey * ey), 0, 1)
        squared = np.minimum(squared, (px - along * ex) ** 2 + (py - along * ey) ** 2)
        if ay != by:
            crosses = (canvas.y < ay) != (canvas.y < by)
            inside ^= crosses & (px < py / ey * ex)
    return np.where(inside, -1, 1) * np.sqrt(squared)


def draw_shadow(canvas: Canvas, x: float, y: float, radius: float) -> None:
    """Darken the ground below an object, without changing segment ids."""
    reach = ((canvas.x - x) / (1.15 * radius)) ** 2 + ((canvas.y - y) / (0.35 * radius)) ** 2
    canvas.colour *= 1 - 0.4 * np.exp(-2.0 * reach)[..., None]


def ball(canvas: Canvas, x: float, y: float, radius: float) -> tuple[np.ndarray, np.ndarray]:
    u, v = (canvas.x - x) / radius, (canvas.y - y) / radius
    depth = np.sqrt(np.clip(1 - u * u - v * v, 0, 1))
    light = 0.5 + 0.55 * np.clip(-0.5 * u - 0.6 * v + 0.62 * depth, 0, 1)
    colour = shade(pick_colour(canvas, "ball"), light)
    spot = np.exp(-((u + 0.38) ** 2 + (v + 0.42) ** 2) / 0.02)[..., None]
    return radius * (np.hypot(u, v) - 1), colour * (1 - 0.7 * spot) + 255 * 0.7 * spot


def crate(canvas: Canvas, x: float, y: float, radius: float) -> tuple[np.ndarray, np.ndarray]:
    angle, aspect = canvas.rng.uniform(-0.35, 0.35), canvas.rng.uniform(0.8, 1.25)
    u = (canvas.x - x) * np.cos(angle) + (canvas.y - y) * np.sin(angle)
    v = (canvas.y - y) * np.cos(angle) - (canvas.x - x) * np.sin(angle)
    half_u, half_v = 0.9 * radius * aspect**0.5, 0.9 * radius / aspect**0.5
    distance = np.maximum(np.abs(u) - half_u, np.abs(v) - half_v)
    planks = np.abs((v / half_v * 2) % 1 - 0.5) > 0.42
    frame = distance > -0.18 * radius
    light = np.where(frame, 0.82, np.where(planks, 0.7, 1.05)) - 0.12 * v / half_v
    return distance, shade(pick_colour(canvas, "crate"), light)


def tent(canvas: Canvas, x: float, y: float, radius: float) -> tuple[np.ndarray, np.ndarray]:
    lean, wide = canvas.rng.uniform(-0.35, 0.35), canvas.rng.uniform(1.0, 1.2)
    corners = [(x + lean * radius, y - 1.05 * radius)]
    corners += [(x + wide * radius, y + 0.85 * radius), (x - wide * radius, y + 0.85 * radius)]
    apex_x, apex_y = corners[0]
    fall = np.maximum(canvas.y - apex_y, 1)
    fan = (canvas.x - apex_x) / fall  # stripes run from the apex
    light = np.where(np.floor(fan * 3.2).astype(int) % 2 == 0, 1.0, 1.25) - 0.15 * (fan > 0)
    colour = shade(pick_colour(canvas, "tent"), light)
    opening = (np.abs(fan - 0.02) < 0.16) & (fall > 0.8 * radius)
    colour[opening] *= 0.35
    return polygon_distance(canvas, np.array(corners)), colour


def starfish(canvas: Canvas, x: float, y: float, radius: float) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(10) * np.pi / 5 + canvas.rng.uniform(0, 2 * np.pi / 5)
    reach = radius * np.where(np.arange(10) % 2, 0.55, 1.2)
    corners = np.stack([x + reach * np.cos(angles), y + reach * np.sin(angles)], axis=1)
    distance = polygon_distance(canvas, corners)
    dots = np.cos((canvas.x - x) * 1.3) * np.cos((canvas.y - y) * 1.3)
    light = 0.8 + np.clip(-distance / radius, 0, 0.35) + 0.08 * dots
    return distance - 0.08 * radius, shade(pick_colour(canvas, "starfish"), light)


SHAPES = {"ball": ball, "crate": crate, "tent": tent, "starfish": starfish}


def pick_colour(canvas: Canvas, name: str) -> np.ndarray:
    palette = PALETTES[name]
    colour = np.array(palette[canvas.rng.integers(len(palette))], float)
    return colour * canvas.rng.uniform(0.85, 1.1, 3)


def draw_objects(canvas: Canvas, horizon: float, kinds: Sequence[str]) -> None:
    """Paint two to five objects on the ground; near objects are larger and hide far objects."""
    rng, size = canvas.rng, canvas.size
    rows = np.sort(rng.uniform(horizon + 0.04 * size, 0.9 * size, rng.integers(2, 6)))
    for row in rows:
        name = kinds[rng.integers(len(kinds))]
        nearness = (row - horizon) / (size - horizon)
        radius = size * (0.075 + 0.07 * nearness) * rng.uniform(0.85, 1.2)
        x = rng.uniform(0.08, 0.92) * size
        part = canvas.near(x, row, 2.5 * radius)
        draw_shadow(part, x, row + 0.85 * radius, radius)
        part.paint(*SHAPES[name](part, x, row, radius), canvas.new_segment(name))


def draw_crowd(canvas: Canvas, horizon: float) -> None:
    """Paint a heap of small balls, annotated as one crowd segment."""
    rng, size = canvas.rng, canvas.size
    crowd = canvas.new_segment("ball", iscrowd=1)
    centre = rng.uniform(0.2, 0.8) * size, rng.uniform(horizon + 0.1 * size, 0.75 * size)
    offsets = rng.normal(0, 0.06 * size, (14, 2)) * (1.3, 0.5)
    for dx, dy in offsets[np.argsort(offsets[:, 1])]:
        radius = size * rng.uniform(0.022, 0.034)
        x, y = centre[0] + dx, centre[1] + dy
        part = canvas.near(x, y, 2.5 * radius)
        draw_shadow(part, x, y + 0.8 * radius, radius)
        part.paint(*ball(part, x, y, radius), crowd)


def draw_rock(canvas: Canvas, horizon: float) -> None:
    """Paint a grey rock, whose pixels are void because it has no category."""
    rng, size = canvas.rng, canvas.size
    angles, reach = np.sort(rng.uniform(0, 2 * np.pi, 9)), size * rng.uniform(0.04, 0.08, 9)
    x, y = rng.uniform(0.1, 0.9) * size, rng.uniform(horizon + 0.1 * size, 0.9 * size)
    corners = np.stack([x + 1.3 * reach * np.cos(angles), y + 0.8 * reach * np.sin(angles)], 1)
    draw_shadow(canvas, x, y + 0.05 * size, 0.08 * size)
    light = 1 + 0.3 * canvas.noise((25, 25)) - (canvas.y - y) / (0.25 * size)
    canvas.paint(polygon_distance(canvas, corners), shade((128, 124, 120), light), 0)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[1],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=datasets_root() / "scenes", help="output folder")
    add("--train", type=int, default=400, help="number of training images")
    add("--val", type=int, default=60, help="number of validation images")
    add("--size", type=int, default=160, help="width and height of the images in pixels")
    add("--seed", type=int, default=0, help="random seed; the same seed gives identical files")
    add("--classes", nargs="+", default=CLASSES, choices=CLASSES, help="classes to draw")
    args = parser.parse_args(argv)
    generate_scenes(args.output, args.train, args.val, args.size, args.seed, args.classes)


if __name__ == "__main__":
    from ocr_panoptic.program import run_program

    run_program(main)
