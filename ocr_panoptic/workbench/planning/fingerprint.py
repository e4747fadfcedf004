"""
The fingerprint of a data set: the facts on which the plan of its training depends.

Numbers of images and of classes' pixels are those of the data check. All other facts come from at
most 300 training images, evenly spread, and are kept in the data check's cache. Lengths are shares
of an image's shorter side, because images are resized to a common shorter side.

Shape letters: H, W size of an image; K classes; C channels.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ocr_panoptic.data.data_check import SplitSummary, check_sources, remembered
from ocr_panoptic.data.data_file import TRAIN, VAL, DataFiles, read_data_files
from ocr_panoptic.data.faults import faults_listed
from ocr_panoptic.data.panoptic.source import PanopticSource
from ocr_panoptic.data.places import cache_folder
from ocr_panoptic.data.sources import read_data_sets
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import read_labels
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.formats.segment_runs import SegmentRuns
from ocr_panoptic.progress import imap_with_progress

VERSION = 4  # version of the cache files
SAMPLE = 300  # largest number of images that are read
PIXELS = 2**22  # larger label maps are thinned to about this number of pixels
# Images have a fixed orientation if a mean over them differs from 0 by this much, and by this many
# standard errors.
LEAST, ERRORS = 0.02, 4.0


@dataclass(frozen=True)
class ClassFacts:
    """
    The facts of a class.

    Attributes:
        kind: "thing", "stuff" or "class".
        images: share of the training images that show the class.
        pixels: share of the pixels of all training images.
        width: mean width, twice the area divided by the length of the boundary, as a share of the
            shorter side; None for a class that the sample does not show.
    """

    name: str
    kind: str
    images: float
    pixels: float
    width: float | None


@dataclass(frozen=True)
class Fingerprint:
    """
    The facts of a data set on which a plan depends.

    Attributes:
        name: name of the data set.
        files: paths of the data files.
        kind: "panoptic" or "semantic".
        channels: number of channels of an image.
        train, val: number of images; ``val`` is 0 without a split for evaluation.
        short: shorter side of the images in pixels: smallest, median, largest.
        aspect: largest ratio of an image's longer side to its shorter side.
        classes: facts of the classes.
        void: share of the pixels without a class.
        crowds: share of the objects that are crowds.
        objects: number of objects of an image: median, 95 % quantile, largest number.
        sides: geometric mean of an object's width and height: 5 %, 25 %, 50 %, 75 % and 95 %
            quantiles; () without objects.
        has_top: whether the images have a fixed orientation.
        mean, std: mean and standard deviation of each channel, in the order of INPUT.FORMAT RGB.
        light: standard deviation of the images' mean brightness, as a share of its mean.
    """

    name: str
    files: tuple[str, ...]
    kind: str
    channels: int
    train: int
    val: int
    short: tuple[int, int, int]
    aspect: float
    classes: tuple[ClassFacts, ...]
    void: float
    crowds: float
    objects: tuple[int, int, int]
    sides: tuple[float, ...]
    has_top: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    light: float

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.train:,} images to train on, {self.val:,} to evaluate, "
            f"{len(self.classes)} classes",
            f"shorter side: {self.short[1]} pixels ({self.short[0]} to {self.short[2]})",
        ]
        if self.sides:
            pixels = [f"{side * self.short[1]:.0f}" for side in self.sides]
            lines.append(
                f"objects in an image: median {self.objects[0]}, at most {self.objects[2]}; half "
                f"of them have a side of {pixels[1]} to {pixels[3]} pixels, median {pixels[2]}"
            )
        if thin := self.thinnest():
            lines.append(
                f"thinnest class: {thin.name}, {(thin.width or 0) * self.short[1]:.0f} pixels wide"
            )
        way = "a" if self.has_top else "no"
        lines.append(
            f"the images have {way} fixed orientation; their brightness varies by {self.light:.0%}"
        )
        if self.void:
            lines.append(
                f"void: {self.void:.1%} of the pixels; crowds: {self.crowds:.1%} of objects"
            )
        return "\n".join(lines)

    def thinnest(self) -> ClassFacts | None:
        """Return the class with the smallest mean width, or None if no class has pixels."""
        shown = [c for c in self.classes if c.width is not None]
        return min(shown, key=lambda c: c.width or 0, default=None)


def fingerprint(files: DataFiles, workers: int | None = None) -> Fingerprint:
    """
    Check the data that data files describe, and return their fingerprint.

    DataFaults is raised if the data have faults, and UserError if there is nothing to train on.
    """
    files = read_data_files(files)
    if len({file.kind for file in files}) + len({file.channels for file in files}) > 2:
        found = ", ".join(f"{file.name}: {file.kind}, {file.channels} channels" for file in files)
        raise UserError(f"The data files must have the same kind and channels, found {found}.")
    with faults_listed(cache_folder() / f"{files[0].path.stem}_faults.txt"):
        sets = read_data_sets(files, same_classes=True)
        names = {s: [f.data_set(s) for f in files if s in f.splits] for s in (TRAIN, VAL)}
        if not names[TRAIN]:
            paths = ", ".join(str(file.path) for file in files)
            raise UserError(
                f"{paths}: found no split called {TRAIN}, which the training needs. Splits: "
                f"{', '.join(sets) or 'none'}."
            )
        sources = [sets[name].source for name in (*names[TRAIN], *names[VAL])]
        checked = check_sources(sources, workers, thorough=True).splits
    splits, val = checked[: len(names[TRAIN])], checked[len(names[TRAIN]) :]
    parts = [facts_of_split(source, workers) for source in sources[: len(splits)]]
    return Fingerprint(
        name=files[0].name,
        files=tuple(str(file.path) for file in files),
        kind=files[0].kind,
        channels=files[0].channels,
        train=sum(split.images for split in splits),
        val=sum(split.images for split in val),
        **_joined(splits, parts),
    )


def facts_of_split(source: Any, workers: int | None = None) -> dict[str, Any]:
    """
    Return the facts of a split's sample as lists with an entry for each image.

    Args:
        source: a PanopticSource or a SemanticSource.
    """
    images = source.images()
    count = min(SAMPLE, len(images))
    sample = [images[i * len(images) // count] for i in range(count)]
    files = [path for image in sample for path in source.files(image)]
    if isinstance(source, PanopticSource):
        files.append(str(source.split.annotations))
    look = partial(facts_of_image, source, [*source.classes()])

    def compute() -> dict:
        found = [*imap_with_progress(look, sample, f"look at {source.name}", workers)]
        return {key: [facts[key] for facts in found] for key in found[0]}

    place = hashlib.blake2b("\n".join(map(str, files)).encode(), digest_size=8).hexdigest()
    return remembered(
        f"fingerprint-{place}", ["fingerprint", VERSION, source.recipe()], files, compute
    )


def facts_of_image(source: Any, keys: Sequence[int], image: Any) -> dict[str, Any]:
    """
    Return the facts of an image.

    Args:
        source: a PanopticSource or a SemanticSource.
        keys: the source's key of each class, [K].
        image: an entry of ``source.images()``.

    Returns:
        dict of JSON values: "size" (height, width); "objects" and "crowds", their numbers; "sides"
        of the objects in shares of the shorter side; for each class "area", "boundary" (in shorter
        sides), "row" (mean, from -0.5 at the top to 0.5) and "spread" (see _of_classes), None
        without pixels; "mean" and "square" of each channel; "tilt", the brightness of the upper
        half minus that of the lower, as a share of the whole's
    """
    picture, labels_file, *_ = source.files(image)
    sides: list[float] = []
    crowds = 0
    if isinstance(source, PanopticSource):
        runs = SegmentRuns(source.read_segments(labels_file))
        places = {key: place for place, key in enumerate(keys)}
        of_segment = {s["id"]: places[s["category_id"]] for s in image.segments}
        table = np.array([of_segment.get(i, len(keys)) for i in runs.ids.tolist()], np.int32)
        labels = table[runs.places()]
        things = {key for key, (_, kind) in source.classes().items() if kind == "thing"}
        drawn = runs.statistics
        for segment in image.segments:
            if segment["category_id"] in things and segment["id"] in drawn:
                _, _, width, height = drawn[segment["id"]].bbox
                if segment.get("iscrowd"):
                    crowds += 1
                else:
                    sides.append((width * height) ** 0.5)
    else:
        raw = read_labels(labels_file, source.space.label_map)
        table = np.full(int(raw.max()) + 1, len(keys), np.int32)
        for place, key in enumerate(keys):
            table[key : key + 1] = place
        labels = table[raw]
    size = labels.shape
    short = min(size)
    pixels = read_picture(picture, "RGB", source.channels)
    step = max(1, round((pixels.shape[0] * pixels.shape[1] / PIXELS) ** 0.5))
    pixels = pixels[::step, ::step].astype(np.float64)
    half = -(-len(pixels) // 2)
    light = pixels[..., :3].mean(-1)  # a fourth channel is no brightness
    tilt = (light[:half].mean() - light[-half:].mean()) / max(light.mean(), 1e-6)
    pixels = pixels.reshape(-1, source.channels)
    return {
        "size": size,
        "objects": len(sides),
        "crowds": crowds,
        "sides": [round(side / short, 5) for side in sides],
        **_of_classes(labels, len(keys)),
        "mean": pixels.mean(0).tolist(),
        "square": (pixels**2).mean(0).tolist(),
        "tilt": float(tilt),
    }


def _of_classes(labels: np.ndarray, number: int) -> dict[str, list]:
    """
    Return area, boundary, row and spread of each class, given each pixel's class or ``number``.

    The spread is how much farther a class reaches in height than in width: the deviation of its
    pixels' rows minus that of their columns, in shares of the side of the largest square in the
    middle of the image. In a longer window, classes reach farther along it, however they lie.
    """
    step = max(1, round((labels.size / PIXELS) ** 0.5))
    labels = labels[::step, ::step]
    short = min(labels.shape)
    area, row, _ = _moments(labels, number)
    top, left = ((side - short) // 2 for side in labels.shape)
    square = labels[top : top + short, left : left + short]
    (inside, _, high), (_, _, wide) = _moments(square, number), _moments(square.T, number)
    edges = np.zeros(number + 1, np.int64)
    for one, other in ((labels[1:], labels[:-1]), (labels[:, 1:], labels[:, :-1])):
        differ = one != other
        for side in (one, other):
            edges += np.bincount(side[differ], minlength=number + 1)
    return {
        "area": (area / short**2).round(7).tolist(),
        "boundary": (edges[:number] / short).round(5).tolist(),
        "row": [float(m) if a else None for m, a in zip(row, area)],
        "spread": [float(s) if a else None for s, a in zip(high - wide, inside)],
    }


def _moments(labels: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return number of pixels, and mean and deviation of their rows (-0.5..0.5), of each class."""
    rows = np.arange(len(labels), dtype=np.int64)[:, None] * (number + 1)
    counts = np.bincount((labels + rows).ravel(), minlength=len(labels) * (number + 1))
    counts = counts.reshape(len(labels), number + 1)[:, :number]  # pixels of each row and class
    area = counts.sum(0)
    row = (np.arange(len(labels)) + 0.5) / len(labels) - 0.5
    mean, square = (powers @ counts / np.maximum(area, 1) for powers in (row, row**2))
    return area, mean, np.sqrt(np.maximum(square - mean**2, 0))


def _joined(splits: Sequence[SplitSummary], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of a Fingerprint that the summaries and facts of the splits determine."""
    facts = {key: [value for part in parts for value in part[key]] for key in parts[0]}
    sizes = np.array(facts["size"])
    short = sizes.min(1)
    objects = np.array(facts["objects"])
    sides = np.array([side for image in facts["sides"] for side in image])
    area, boundary = np.array(facts["area"]).sum(0), np.array(facts["boundary"]).sum(0)
    images, pixels = (sum(getattr(split, key) for split in splits) for key in ("images", "pixels"))
    classes = []
    for place, of_class in enumerate(zip(*(split.classes for split in splits), strict=True)):
        length = boundary[place]
        # A class without a boundary fills whole images.
        width = 2 * area[place] / length if length else 1.0
        shown = ClassFacts(
            of_class[0].name,
            of_class[0].kind,
            sum(c.images for c in of_class) / images,
            sum(c.pixels for c in of_class) / pixels,
            min(1.0, float(width)) if area[place] else None,
        )
        classes.append(shown)
    mean = np.array(facts["mean"])
    whole = mean.mean(0)
    variance = np.maximum(np.array(facts["square"]).mean(0) - whole**2, 0)
    light = mean[:, :3].mean(1)
    most = max(split.most_things[1] for split in splits)
    crowds = sum(facts["crowds"])
    return {
        "short": tuple(int(v) for v in (short.min(), np.median(short), short.max())),
        "aspect": float((sizes.max(1) / short).max()),
        "classes": tuple(classes),
        "void": max(0.0, 1 - sum(c.pixels for c in classes)),
        "crowds": crowds / max(1, crowds + int(objects.sum())),
        "objects": (int(np.median(objects)), int(np.ceil(np.quantile(objects, 0.95))), most),
        "sides": tuple(np.quantile(sides, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist())
        if len(sides)
        else (),
        "has_top": has_top(facts["row"], facts["spread"], facts["tilt"]),
        "mean": tuple(whole.round(3).tolist()),
        "std": tuple(np.maximum(np.sqrt(variance), 1e-3).round(3).tolist()),
        "light": float(light.std() / max(light.mean(), 1e-6)),
    }


def has_top(
    rows: Sequence[Sequence[float | None]],
    spreads: Sequence[Sequence[float | None]],
    tilts: Sequence[float],
) -> bool:
    """
    Return whether images have a fixed orientation.

    They do if a class prefers certain rows, or reaches farther in one direction, or if the upper
    half is brighter or darker than the lower. Classes that fewer than 8 images show say nothing.
    If none is left, the result is True.

    Args:
        rows, spreads: entries "row" and "spread" of :func:`facts_of_image` for each image.
        tilts: entry "tilt" for each image.
    """
    is_known = False
    for of_class in (*zip(*rows, strict=True), *zip(*spreads, strict=True), tilts):
        shown = np.array([value for value in of_class if value is not None])
        if len(shown) >= 8:
            is_known |= of_class is not tilts
            error = shown.std(ddof=1) / len(shown) ** 0.5
            if abs(shown.mean()) > max(LEAST, ERRORS * error):
                return True
    return not is_known
