"""The check of data sets before a training, and what they hold."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from tabulate import tabulate

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import as_list
from ocr_panoptic.formats.pictures import thin_fault

from .classes import VOID_LABEL
from .data_file import DataFiles, is_detectron2s
from .described import Described, read_described
from .faults import faults_listed, gathering, raise_if_any
from .index import Index, cache_folder
from .panoptic.source import PanopticSource
from .semantic.source import SemanticSource

# Detectron2's INPUT, as far as it scales images.
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
    Attributes:
        kind: "thing", "stuff" or "class".
        images: that show it.
        segments: of it; of semantic data None.
        pixels: of it.
    """

    name: str
    kind: str
    images: int
    segments: int | None
    pixels: int


@dataclass(frozen=True)
class SplitSummary:
    """The content of a split; its text is a table by class.

    Attributes:
        name: of the data set.
        images: their number.
        pixels: of all images, those of no class among them.
    """

    name: str
    images: int
    pixels: int
    classes: tuple[ClassSummary, ...]

    def __str__(self) -> str:
        shown = [(c.name, c.kind, c.images, c.segments, c.pixels) for c in self.classes]
        if none := self.pixels - sum(c.pixels for c in self.classes):
            shown.append(("(none)", "", None, None, none))
        names, kinds, images, segments, pixels = zip(*shown, strict=True)
        columns = {"class": names, "kind": kinds, "images": images, "segments": segments}
        if not any(segments):  # semantic data
            del columns["segments"]
        columns["% of pixels"] = [100 * number / self.pixels for number in pixels]
        table = tabulate(columns, "keys", floatfmt=".2f")
        return f"{self.name}: {self.images:,} images\n{table}"


@dataclass(frozen=True)
class DataSummary:
    """The content of data files, split by split."""

    splits: tuple[SplitSummary, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.splits))


def check_data(files: DataFiles, workers: int | None = None) -> DataSummary:
    """Check every file of the data sets that data files describe, unless it has been found without
    fault and has not changed.

    Args:
        files: one data file or several.
        workers: processes, see :func:`.imap_with_progress`.

    Raises:
        FileNotFoundError, ValueError, DataFaults: as :func:`.read_described`; a name is one of
            Detectron2's; and all faults of images and annotations.
    """
    files = as_list(files)
    with faults_listed(cache_folder() / f"{Path(files[0]).stem}_faults.txt"):
        names, found = read_described(files)
        if taken := next(filter(is_detectron2s, names), None):
            raise UserError(
                f"{found[taken].file.path}: the name {taken} belongs to a data set that Detectron2 "
                "knows already. Give the data another name."
            )
        _check_sources([split.source for split in found.values()], workers, wholly=True)
        # Semantic data are not scaled, unless a config says so.
        panoptic = [s.source for s in found.values() if isinstance(s.source, PanopticSource)]
        raise_if_any([f for source in panoptic for f in _thin_faults(source, DETECTRON2S_SIZES)])
    return DataSummary(tuple(map(_summary, found.values())))


def check_data_sets(
    names: Iterable[str],
    workers: int | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
) -> None:
    """Check registered data sets that were described by files, see :meth:`.Index.check`; of others
    nothing is read.

    Args:
        inputs: INPUT of a config, whose scaled sizes all images must allow.

    Raises:
        DataFaults: those of all.
    """
    from detectron2.data import DatasetCatalog

    _check_sources([DatasetCatalog[name] for name in dict.fromkeys(names)], workers, inputs=inputs)


def _check_sources(
    sources: Iterable[object],
    workers: int | None,
    *,
    wholly: bool = False,
    inputs: Mapping[str, Any] | None = None,
) -> None:
    faults: list[str] = []
    for source in sources:
        if isinstance(source, PanopticSource | SemanticSource):
            with gathering(faults):
                index = source.index()
                if isinstance(source, PanopticSource):
                    raise_if_any(list(source.strange_folders(index)))
                index.check(workers, wholly=wholly)
                if isinstance(source, SemanticSource):
                    raise_if_any(list(_unlabelled_faults(source, index)))
                if inputs is not None:
                    raise_if_any(list(_thin_faults(source, inputs)))
    raise_if_any(faults)


def _unlabelled_faults(source: SemanticSource, index: Index) -> Iterator[str]:
    least = index.column("json_extract(result, '$[0][0]')")  # training label of each image
    if min(least) == VOID_LABEL:
        yield f"{source.split.labels}: all pixels of all label PNGs are ignored; see ignore."


def size_fault(height: int, width: int, inputs: Mapping[str, Any], split: str) -> str | None:
    """
    Return :func:`.thin_fault` of an image that is resized as a config says.

    Args:
        inputs: INPUT of the config.
        split: of the keys MIN_SIZE_ and MAX_SIZE_, "TRAIN" or "TEST".
    """
    key = f"MAX_SIZE_{split}"
    return thin_fault(height, width, _longest_side(inputs, split), f"INPUT.{key}")


def _longest_side(inputs: Mapping[str, Any], split: str) -> float:
    sizes = inputs[f"MIN_SIZE_{split}"]
    is_scaled = any(sizes) if isinstance(sizes, Sequence) else sizes > 0
    return inputs[f"MAX_SIZE_{split}"] if is_scaled and not inputs.get("FIXED_SIZE") else math.inf


def _thin_faults(
    source: PanopticSource | SemanticSource, inputs: Mapping[str, Any]
) -> Iterator[str]:
    split = min("TRAIN", "TEST", key=lambda split: _longest_side(inputs, split))
    if (longest := _longest_side(inputs, split)) == math.inf:
        return
    index, is_panoptic = source.index(), isinstance(source, PanopticSource)
    paths = ("$.height", "$.width") if is_panoptic else ("$[2][0]", "$[2][1]")
    column = "record" if is_panoptic else "result"
    sides = [index.column(f"json_extract({column}, '{path}')") for path in paths]
    is_thin = np.max(sides, axis=0) > 2 * longest * np.min(sides, axis=0)
    for place in np.flatnonzero(is_thin).tolist():
        size = [side[place] for side in sides]
        fault = size_fault(*size, inputs, split)
        yield f"{source.files(index.record(place))[0]}: {fault}."


def _summary(split: Described) -> SplitSummary:
    source, index = split.source, split.source.index()
    if isinstance(source, PanopticSource):
        return _panoptic_summary(source, index)
    return _semantic_summary(source, index)


def _panoptic_summary(source: PanopticSource, index: Index) -> SplitSummary:
    categories = source.categories(index)
    place = {category.id: k for k, category in enumerate(categories)}
    images, segments, pixels = (np.zeros(len(categories), np.int64) for _ in range(3))
    total = 0
    for row, areas in zip(index.records(), index.results(), strict=True):
        total += row["height"] * row["width"]
        found = [place[s["category_id"]] for s, a in zip(row["segments"], areas) if a]
        np.add.at(segments, found, 1)
        np.add.at(pixels, found, [area for area in areas if area])
        images[list(set(found))] += 1
    classes = (
        ClassSummary(c.name, "thing" if c.isthing else "stuff", *map(int, counts))
        for c, *counts in zip(categories, images, segments, pixels, strict=True)
    )
    return SplitSummary(source.name, len(index), total, tuple(classes))


def _semantic_summary(source: SemanticSource, index: Index) -> SplitSummary:
    pixels, images = (np.zeros(VOID_LABEL + 1, np.int64) for _ in range(2))
    for labels, counts, _ in index.results():
        pixels[labels] += counts
        images[labels] += 1
    classes = (
        ClassSummary(name, "class", int(images[k]), None, int(pixels[k]))
        for k, name in enumerate(source.space.classes)
    )
    return SplitSummary(source.name, len(index), int(pixels.sum()), tuple(classes))
