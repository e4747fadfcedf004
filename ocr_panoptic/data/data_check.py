"""
The check of data sets before training, and a summary of their content.

Splits without faults are remembered in the user's cache (``$XDG_CACHE_HOME/ocr_panoptic``, by
default ``~/.cache/ocr_panoptic``). A small file for each split has the summary, and a digest of the
names, sizes and times of the split's files. The cache may be removed at any time.
"""

import hashlib
import heapq
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock
from tabulate import tabulate

from ocr_panoptic.formats.files import as_list, write_json
from ocr_panoptic.formats.pictures import thin_fault
from ocr_panoptic.progress import imap_with_progress

from .data_file import DataFiles, cache_folder
from .described import read_described
from .faults import faults_listed, gathering, raise_if_any
from .findings import photo_warnings
from .panoptic import check as panoptic_check
from .panoptic.source import PanopticSource
from .semantic import check as semantic_check
from .semantic.source import SemanticSource

VERSION = 4  # version of the cache files
# Largest number of images at which the start of training checks every file; above, use ``check``.
MANY = 20_000
THINNEST = 20  # number of images in SplitSummary.thinnest

# Detectron2's defaults of TEST.DETECTIONS_PER_IMAGE, and of the INPUT keys that scale images.
DETECTIONS = 100
DETECTRON2S_SIZES = MappingProxyType(
    {
        "MIN_SIZE_TRAIN": (800,),
        "MAX_SIZE_TRAIN": 1333,
        "MIN_SIZE_TEST": 800,
        "MAX_SIZE_TEST": 1333,
    }
)


@dataclass(frozen=True)
class ClassSummary:
    """
    A class, and its share in a split.

    Attributes:
        kind: "thing", "stuff" or "class".
        images: number of images that show the class.
        segments: number of its segments; None for semantic data.
        pixels: number of its pixels.
    """

    name: str
    kind: str
    images: int
    segments: int | None
    pixels: int


@dataclass(frozen=True)
class SplitSummary:
    """
    The content of a split; its text is a table by class.

    Attributes:
        name: name of the data set.
        images: number of images.
        pixels: pixels of all images, including pixels without a class.
        thinnest: file, height and width of the images with the largest ratio of long to short side.
        most_things: file and number of things of the image with the most things.
        warnings: sentences about data without faults that a user should know.
    """

    name: str
    images: int
    pixels: int
    classes: tuple[ClassSummary, ...]
    thinnest: tuple[tuple[str, int, int], ...]
    most_things: tuple[str, int]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        shown: list[tuple] = [
            (c.name, c.kind, c.images, c.segments, c.pixels) for c in self.classes
        ]
        if none := self.pixels - sum(c.pixels for c in self.classes):
            shown.append(("(none)", "", None, None, none))
        names, kinds, images, segments, pixels = zip(*shown, strict=True)
        columns = {"class": names, "kind": kinds, "images": images, "segments": segments}
        if not any(segments):  # semantic data
            del columns["segments"]
        columns["% of pixels"] = tuple(100 * number / self.pixels for number in pixels)
        table = tabulate(columns, "keys", floatfmt=".2f")
        return f"{self.name}: {self.images:,} images\n{table}"


@dataclass(frozen=True)
class DataSummary:
    """The content of data files; its text shows each split and the warnings."""

    splits: tuple[SplitSummary, ...]

    def __str__(self) -> str:
        shown = [f"Warning: {text}" for text in self.warnings_for(DETECTIONS)]
        return "\n\n".join([*map(str, self.splits), *shown])

    def warnings_for(self, detections: float) -> list[str]:
        """
        Return the warnings, each with the data sets that it concerns.

        Args:
            detections: TEST.DETECTIONS_PER_IMAGE.
        """
        owners: dict[str, list[str]] = defaultdict(list)
        for split in self.splits:
            file, things = split.most_things
            too_many = (
                f"{file} has {things} things, but a model finds at most {detections}: set "
                "TEST.DETECTIONS_PER_IMAGE."
            )
            for text in (*split.warnings, *([too_many] if things > detections else [])):
                owners[text].append(split.name)
        return [f"{', '.join(names)}: {text}" for text, names in owners.items()]


def joined_summaries(found: Iterable[DataSummary]) -> DataSummary:
    """Return a single summary of the splits in several summaries."""
    return DataSummary(tuple(split for summary in found for split in summary.splits))


def check_data(files: DataFiles, workers: int | None = None) -> DataSummary:
    """
    Check every file of the data sets that data files describe, unless a check is remembered.

    Args:
        files: one data file or several.
        workers: processes, see :func:`.imap_with_progress`.
    """
    files = as_list(files)
    with faults_listed(cache_folder() / f"{Path(files[0]).stem}_faults.txt"):
        _, found = read_described(files)
        return check_sources([split.source for split in found.values()], workers, thorough=True)


def check_data_sets(
    names: Iterable[str],
    workers: int | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
) -> DataSummary:
    """
    Check registered data sets of this package, if they have at most MANY images.

    Data sets that other code has registered are not read.

    Args:
        inputs: INPUT of a config; all images must have a size that it can scale.
    """
    from detectron2.data import DatasetCatalog

    sources = [DatasetCatalog[name] for name in dict.fromkeys(names)]
    return check_sources(sources, workers, inputs=inputs)


def check_sources(
    sources: Iterable[object],
    workers: int | None,
    *,
    thorough: bool = False,
    inputs: Mapping[str, Any] | None = None,
) -> DataSummary:
    """
    Check the sources that belong to this package.

    Args:
        thorough: for the command ``check``: whether to check sources of more than MANY images, too,
            and whether Detectron2's default sizes suit panoptic images.
        inputs: see :func:`check_data_sets`.
    """
    faults: list[str] = []
    found = []
    for source in sources:
        if isinstance(source, PanopticSource | SemanticSource):
            # Semantic data are only scaled if a config says so.
            sizes = DETECTRON2S_SIZES if thorough and isinstance(source, PanopticSource) else inputs
            with gathering(faults):
                images = source.images()
                if thorough or len(images) <= MANY:
                    summary = _check_or_recall(source, images, workers)
                    found.append(summary)
                    if sizes:
                        split = min("TRAIN", "TEST", key=lambda split: _longest_side(sizes, split))
                        thin = ((p, size_fault(h, w, sizes, split)) for p, h, w in summary.thinnest)
                        raise_if_any([f"{path}: {fault}." for path, fault in thin if fault])
    raise_if_any(faults)
    return DataSummary(tuple(found))


def _check_or_recall(
    source: PanopticSource | SemanticSource, images: list, workers: int | None
) -> SplitSummary:
    """Return a split's summary from the cache, or else by reading every image."""
    place = [source.name, *map(os.path.abspath, vars(source.split).values())]
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", source.name)[:100]
    files = [path for image in images for path in source.files(image)]
    if isinstance(source, PanopticSource):
        files.append(source.split.annotations)
    known = remembered(
        f"{name}-{_digest(place)}",
        [VERSION, source.recipe()],
        files,
        lambda: asdict(_check_images(source, images, workers)),
    )
    return SplitSummary(**known | {"classes": tuple(ClassSummary(**c) for c in known["classes"])})


def remembered(
    name: str, recipe: list, files: Iterable[str | Path], compute: Callable[[], dict]
) -> dict:
    """
    Return a result from the user's cache, or compute it and keep it there.

    Args:
        name: name of the cache's file.
        recipe: everything that the result depends on, except the files.
        files: files that the result depends on, by their sizes and times.
        compute: function that returns the result, which JSON can hold.
    """
    file = cache_folder() / f"{name}.json"
    with FileLock(file.with_suffix(".lock")):  # processes of a run start together
        state = _digest([recipe, [[str(path), *_state_of(path)] for path in files]])
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(file.read_text())
            if known.pop("state") == state:
                return known
        result = compute()
        write_json(file, {"state": state, **result})
    return result


def _check_images(
    source: PanopticSource | SemanticSource, images: list, workers: int | None
) -> SplitSummary:
    kind: Any = panoptic_check if isinstance(source, PanopticSource) else semantic_check
    raise_if_any(list(kind.general_faults(source, images)))
    shown_in: Counter[int] = Counter()
    segments: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    looks = list(imap_with_progress(kind.checker(source), images, f"check {source.name}", workers))
    raise_if_any([fault for look in looks for fault in look.faults])
    files = [str(source.files(image)[0]) for image in images]
    for look in looks:
        for key, (number, area) in look.shown.items():
            shown_in[key] += 1
            segments[key] += number
            pixels[key] += area
    classes = source.classes()
    if isinstance(source, SemanticSource) and not any(pixels[key] for key in classes):
        ignored = f"{source.split.labels}: all pixels of all label PNGs are ignored; see ignore."
        raise_if_any([ignored])
    listed = (
        ClassSummary(name, kind, shown_in[k], None if kind == "class" else segments[k], pixels[k])
        for k, (name, kind) in classes.items()
    )
    sizes = [(file, *look.size) for file, look in zip(files, looks, strict=True)]
    thinnest = heapq.nlargest(THINNEST, sizes, key=lambda size: max(size[1:]) / min(size[1:]))
    return SplitSummary(
        name=source.name,
        images=len(images),
        pixels=sum(height * width for _, height, width in sizes),
        classes=tuple(listed),
        thinnest=tuple(thinnest),
        most_things=max(zip(files, (look.things for look in looks)), key=lambda most: most[1]),
        warnings=(*kind.warnings(source, looks), *photo_warnings(files, looks, source.channels)),
    )


def _digest(value: object) -> str:
    """Return a hash of a value that JSON can hold."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def _state_of(path: str | Path) -> tuple[int, int]:
    """Return a file's size and time of the last change; (-1, -1) if it does not exist."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    return -1, -1


def size_fault(height: int, width: int, inputs: Mapping[str, Any], split: str) -> str | None:
    """
    Return :func:`.thin_fault` for an image that is resized by a config.

    Args:
        inputs: INPUT of the config.
        split: part of the keys MIN_SIZE_ and MAX_SIZE_, "TRAIN" or "TEST".
    """
    key = f"MAX_SIZE_{split}"
    return thin_fault(height, width, _longest_side(inputs, split), f"INPUT.{key}")


def _longest_side(inputs: Mapping[str, Any], split: str) -> float:
    sizes = inputs[f"MIN_SIZE_{split}"]
    is_scaled = any(sizes) if isinstance(sizes, Sequence) else sizes > 0
    return inputs[f"MAX_SIZE_{split}"] if is_scaled and not inputs.get("FIXED_SIZE") else math.inf
