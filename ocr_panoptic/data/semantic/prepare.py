"""Preparation of a folder of images and label PNGs: everything is checked, and a manifest written.

Images and labels stay as they are and where they are; the label map is applied when they are read.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.faults import first_few, gathering, raise_if_any
from ocr_panoptic.data.fingerprint import digest
from ocr_panoptic.data.journal import Journal, Work
from ocr_panoptic.data.manifest import Manifest
from ocr_panoptic.data.preparing import preparing
from ocr_panoptic.data.register import check_new_name
from ocr_panoptic.label_map import apply_label_map
from ocr_panoptic.label_png import read_label_png
from ocr_panoptic.pictures import read_size

from .label_space import LabelSpace, read_class_file
from .manifest import SEMANTIC_FORMAT, SemanticSplit
from .records import LabelledFolder

logger = logging.getLogger(__name__)

VERSION = 1  # of what is found out about a pair


def prepare_semantic(
    name: str,
    class_file: Path,
    splits: dict[str, SemanticSplit],
    output: Path,
    workers: int | None = None,
    channels: int = 3,
) -> Path:
    """Check the splits, then write ``output/dataset.json``.

    A repetition looks only at images and labels that have changed.

    Args:
        name: data sets are registered as ``<name>_<split>``.
        class_file: see :func:`read_class_file`.
        splits: e.g. {"train": ..., "val": ...}.
        workers: processes, see :func:`map_with_progress`.
        channels: of the images, INPUT.CHANNELS; with 3 they are of any kind and read in colour.

    Returns:
        the manifest's path.

    Raises:
        FileNotFoundError: a folder or the class file is missing.
        DataFaults: what is wrong with the class file, or with all images and labels: missing,
            broken or truncated files, sizes that differ, labels outside the map. Then nothing has
            been written but ``.preparation``, from which the next run goes on.
        ValueError: a name that is no file name or taken, an ``output`` that cannot be written or
            that another process prepares, or a ``dataset.json`` of another kind of data.
    """
    check_new_name(name, splits, output)
    with preparing(output):
        SEMANTIC_FORMAT.check_free(output, splits)
        space = read_class_file(class_file)
        faults: list[str] = []
        for split, paths in splits.items():
            with gathering(faults):
                _check_split(Journal(output, split), paths, space, workers, channels)
        raise_if_any(faults)
        manifest = Manifest(name, space, splits, channels=channels)
        return SEMANTIC_FORMAT.write(output, manifest)


def _check_split(
    journal: Journal, paths: SemanticSplit, space: LabelSpace, workers: int | None, channels: int
) -> None:
    """Raise the faults of one split, or warn of classes and images that show nothing."""
    split = journal.name
    pairs = LabelledFolder(paths.images, paths.labels).pairs()
    recipe = digest(
        VERSION, sorted(space.label_map.items()), *([channels] if channels != 3 else [])
    )
    works = [Work(str(pair[1].relative_to(paths.labels)), recipe, pair) for pair in pairs]
    check = partial(check_pair, label_map=space.label_map, channels=channels)
    journal.do(check, pairs, works, f"check {split}", workers)
    journal.finish()
    pixels = np.zeros((len(pairs), VOID_LABEL + 1), np.int64)
    for row, result in zip(pixels, journal.results, strict=True):
        labels, counts = json.loads(result)
        row[labels] = counts
    absent = [name for label, name in enumerate(space.classes) if not pixels[:, label].any()]
    if absent:
        logger.warning(f"{split}: no image shows {first_few(absent)}.")
    ignored = np.count_nonzero(pixels.sum(axis=1) == pixels[:, VOID_LABEL])
    if ignored:
        logger.warning(
            f"{split}: {ignored} of {len(pixels)} images hold nothing but ignored pixels."
        )


def check_pair(
    pair: tuple[Path, Path], output: None, label_map: Mapping[int, int], channels: int = 3
) -> tuple[list[str], str]:
    """
    Returns:
        faults of an image and its label PNG.
        JSON of training labels, and of how many pixels have each.
    """
    image, label_png = pair
    faults, size, found = [], None, ([], [])
    try:
        size = read_size(image, channels)
    except ValueError as error:
        faults.append(f"{image}: the image {error}.")
    try:
        labels = read_label_png(label_png)
    except ValueError as error:
        return [*faults, str(error)], ""
    height, width = labels.shape
    if size and (width, height) != (size.width, size.height):
        faults.append(
            f"{label_png}: the label PNG has {width}x{height} pixels, the image {image} "
            f"{size.width}x{size.height}{size.note} (width x height)."
        )
    try:
        pixels = np.bincount(apply_label_map(labels, label_map).ravel())
        shown = np.flatnonzero(pixels)
        found = shown.tolist(), pixels[shown].tolist()
    except ValueError as error:
        faults.append(f"{label_png}: {error}")
    return faults, json.dumps(found)
