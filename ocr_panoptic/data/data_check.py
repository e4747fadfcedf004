"""
Check data sets before training, and summarize their content.

The summary of a split without faults is cached until one of the split's files changes.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from tabulate import tabulate

from ocr_panoptic.formats.files import write_json
from ocr_panoptic.progress import imap_with_progress

from .data_file import DataFiles, read_data_files
from .faults import faults_listed, gathering, raise_if_any
from .findings import photo_warnings
from .panoptic import check as panoptic_check
from .panoptic.source import PanopticSource
from .places import cache_folder
from .semantic import check as semantic_check
from .semantic.check import PaletteEntry
from .semantic.records import SemanticSource
from .sources import read_data_sets

VERSION = 10  # version of the cache files
# Before training, only splits with at most this many images are checked; ``check`` has no limit.
MANY = 20_000
DETECTIONS = 100  # Detectron2's default for TEST.DETECTIONS_PER_IMAGE


@dataclass(frozen=True)
class ClassSummary:
    """The numbers of images, segments and pixels that show a class in a split."""

    name: str
    kind: str  # "thing", "stuff" or "class"
    images: int
    segments: int | None  # None for semantic data
    pixels: int


@dataclass(frozen=True)
class SplitSummary:
    """A summary of a split, which prints as a table with a row for each class."""

    name: str
    images: int
    pixels: int  # of all images, including pixels without a class
    classes: tuple[ClassSummary, ...]
    most_things: tuple[str, int]  # file of the image with the most things, and their number
    warnings: tuple[str, ...]
    palette: tuple[PaletteEntry, ...] = ()  # of label images that are read as numbers

    def __str__(self) -> str:
        rows: list[tuple] = [(c.name, c.kind, c.images, c.segments, c.pixels) for c in self.classes]
        if none := self.pixels - sum(c.pixels for c in self.classes):
            rows.append(("(none)", "", None, None, none))
        names, kinds, images, segments, pixels = zip(*rows, strict=True)
        columns = {"class": names, "kind": kinds, "images": images, "segments": segments}
        if not any(segments):  # semantic data
            del columns["segments"]
        columns["% of pixels"] = tuple(100 * number / self.pixels for number in pixels)
        table = tabulate(columns, "keys", floatfmt=".2f")
        return f"{self.name}: {self.images:,} images\n{table}"


@dataclass(frozen=True)
class DataSummary:
    """A summary of several splits, which prints as their tables followed by the warnings."""

    splits: tuple[SplitSummary, ...]

    def __str__(self) -> str:
        warnings = [f"Warning: {text}" for text in self.warnings_for(DETECTIONS)]
        return "\n\n".join([*map(str, self.splits), *warnings])

    def warnings_for(self, detections: float) -> list[str]:
        """
        Return the warnings about all splits.

        Args:
            detections: largest number of objects that a model can find in an image.
        """
        owners: dict[str, list[str]] = defaultdict(list)
        for split in self.splits:
            file, things = split.most_things
            too_many = (
                f"{file} has {things} objects, but the model can detect at most {detections} in an "
                "image. Raise TEST.DETECTIONS_PER_IMAGE."
            )
            for text in (*split.warnings, *([too_many] if things > detections else [])):
                owners[text].append(split.name)
        return [f"{', '.join(names)}: {text}" for text, names in owners.items()]


def check_data(files: DataFiles, workers: int | None = None) -> DataSummary:
    """
    Check the data sets that data files describe, and return their summaries.

    DataFaults is raised if any split has faults.
    """
    files = read_data_files(files)
    with faults_listed(cache_folder() / f"{files[0].path.stem}_faults.txt"):
        data_sets = read_data_sets(files).values()
        return check_sources([data.source for data in data_sets], workers, thorough=True)


def check_data_sets(names: Iterable[str], workers: int | None = None) -> DataSummary:
    """
    Check the data sets that are registered with a PanopticSource or a SemanticSource.

    Data sets with more than 20,000 images are skipped.
    """
    from detectron2.data import DatasetCatalog

    return check_sources([DatasetCatalog[name] for name in dict.fromkeys(names)], workers)


def check_sources(
    sources: Iterable[object], workers: int | None, *, thorough: bool = False
) -> DataSummary:
    """
    Check each PanopticSource and SemanticSource; skip all other objects.

    Sources with more than 20,000 images are checked only if ``thorough``.
    """
    faults: list[str] = []
    summaries = []
    palettes: dict[str, list[PaletteEntry]] = defaultdict(list)  # of splits with equal labels
    for source in sources:
        if not isinstance(source, PanopticSource | SemanticSource):
            continue
        with gathering(faults):
            images = source.images()
            if thorough or len(images) <= MANY:
                summaries.append(_check_or_recall(source, images, workers))
                palettes[_digest(source.recipe())] += summaries[-1].palette
    for entries in palettes.values():
        faults += semantic_check.palette_faults(entries)
    raise_if_any(faults)
    return DataSummary(tuple(summaries))


def _check_or_recall(
    source: PanopticSource | SemanticSource, images: list, workers: int | None
) -> SplitSummary:
    place = [source.name, *map(os.path.abspath, vars(source.split).values())]
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", source.name)[:100]
    files = [path for image in images for path in source.files(image)]
    if isinstance(source, PanopticSource):
        files.append(source.split.annotations)
    summary = remembered(
        f"{name}-{_digest(place)}",
        [VERSION, source.recipe()],
        files,
        lambda: asdict(_check_images(source, images, workers)),
    )
    classes = tuple(ClassSummary(**entry) for entry in summary["classes"])
    palette = tuple(PaletteEntry(i, tuple(c), *rest) for i, c, *rest in summary["palette"])
    return SplitSummary(**summary | {"classes": classes, "palette": palette})


def remembered(
    name: str, recipe: list, files: Iterable[str | Path], compute: Callable[[], dict]
) -> dict:
    """
    Return a function's result from the cache; call the function if the cache is out of date.

    Args:
        name: name of the cache file, without suffix.
        recipe: JSON values on which the result depends, besides the files.
        files: files on which the result depends; sizes and modification times are compared.
        compute: function that returns a JSON-serializable dict.
    """
    file = cache_folder() / f"{name}.json"
    with FileLock(file.with_suffix(".lock")):  # several processes of a run may check at once
        state = _digest([recipe, [[str(path), *_state_of(path)] for path in files]])
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(file.read_text())
            if kept.pop("state") == state:
                return kept
        result = compute()
        write_json(file, {"state": state, **result})
    return result


def _check_images(
    source: PanopticSource | SemanticSource, images: list, workers: int | None
) -> SplitSummary:
    kind: Any = panoptic_check if isinstance(source, PanopticSource) else semantic_check
    raise_if_any(list(kind.general_faults(source, images)))
    images_with: Counter[int] = Counter()
    segments: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    findings = list(
        imap_with_progress(kind.checker(source), images, f"check {source.name}", workers)
    )
    raise_if_any([fault for image in findings for fault in image.faults])
    files = [str(source.files(image)[0]) for image in images]
    for image in findings:
        for key, (number, area) in image.classes.items():
            images_with[key] += 1
            segments[key] += number
            pixels[key] += area
    raise_if_any(list(kind.joint_faults(source, images, findings)))
    summaries = (
        ClassSummary(name, k, images_with[c], None if k == "class" else segments[c], pixels[c])
        for c, (name, k) in source.classes().items()
    )
    warnings = photo_warnings(files, findings, source.channels)
    return SplitSummary(
        name=source.name,
        images=len(images),
        pixels=sum(math.prod(image.size) for image in findings),
        classes=tuple(summaries),
        most_things=max(zip(files, (image.things for image in findings)), key=lambda most: most[1]),
        warnings=(*kind.warnings(source, images, findings), *warnings),
        palette=semantic_check.shared_palette(images, findings),
    )


def _digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def _state_of(path: str | Path) -> tuple[int, int]:
    with suppress(OSError):
        state = os.stat(path)
        return state.st_size, state.st_mtime_ns
    return -1, -1
