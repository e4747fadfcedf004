"""Preparation of a folder of images and label PNGs: everything is checked, and a manifest written.

Images and labels stay as they are and where they are; the label map is applied when they are read.
"""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.faults import gathering, raise_if_any
from ocr_panoptic.data.manifest import Manifest, check_name
from ocr_panoptic.data.parallel import map_with_progress
from ocr_panoptic.label_map import apply_label_map
from ocr_panoptic.label_png import read_label_png
from ocr_panoptic.pictures import read_size

from .label_space import LabelSpace, read_class_file
from .manifest import SEMANTIC_FORMAT, SemanticSplit
from .records import LabelledFolder

logger = logging.getLogger(__name__)


def prepare_semantic(
    name: str,
    class_file: Path,
    splits: dict[str, SemanticSplit],
    output: Path,
    workers: int | None = None,
) -> Path:
    """Check the splits, then write ``output/dataset.json``. Repeating is harmless.

    Args:
        name: data sets are registered as ``<name>_<split>``.
        class_file: see :func:`read_class_file`.
        splits: e.g. {"train": ..., "val": ...}.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the manifest's path.

    Raises:
        FileNotFoundError: a folder or the class file is missing.
        DataFaults: what is wrong with the class file, or with all images and labels: missing,
            broken or truncated files, sizes that differ, labels outside the map. Then nothing has
            been written.
        ValueError: a name that is no file name, or a ``dataset.json`` of another kind of data.
    """
    check_name(name)
    SEMANTIC_FORMAT.check_free(output, splits)
    space = read_class_file(class_file)
    faults: list[str] = []
    for split, paths in splits.items():
        with gathering(faults):
            _check_split(split, paths, space, workers)
    raise_if_any(faults)
    return SEMANTIC_FORMAT.write(output, Manifest(name, space, splits))


def _check_split(split: str, paths: SemanticSplit, space: LabelSpace, workers: int | None) -> None:
    """Raise the faults of one split, or warn of classes and images that show nothing."""
    pairs = LabelledFolder(paths.images, paths.labels).pairs()
    check = partial(check_pair, label_map=space.label_map)
    checked = map_with_progress(check, pairs, f"check {split}", workers)
    raise_if_any([fault for faults, _ in checked for fault in faults])
    pixels = np.stack([pixels for _, pixels in checked])  # [images, 256]
    absent = [name for label, name in enumerate(space.classes) if not pixels[:, label].any()]
    if absent:
        logger.warning(f"{split}: no image shows {', '.join(absent)}.")
    ignored = np.count_nonzero(pixels.sum(axis=1) == pixels[:, VOID_LABEL])
    if ignored:
        logger.warning(
            f"{split}: {ignored} of {len(pixels)} images hold nothing but ignored pixels."
        )


def check_pair(
    pair: tuple[Path, Path], label_map: Mapping[int, int]
) -> tuple[list[str], np.ndarray]:
    """Faults of an image and its label PNG; pixels of each training label, int64 [256]."""
    image, label_png = pair
    faults, size, pixels = [], None, np.zeros(VOID_LABEL + 1, np.int64)
    try:
        size = read_size(image)
    except ValueError as error:
        faults.append(f"{image}: the image {error}.")
    try:
        labels = read_label_png(label_png)
    except ValueError as error:
        return [*faults, str(error)], pixels
    height, width = labels.shape
    if size and (width, height) != (size.width, size.height):
        faults.append(
            f"{label_png}: the label PNG has {width}x{height} pixels, the image {image} "
            f"{size.width}x{size.height}{size.note} (width x height)."
        )
    try:
        pixels = np.bincount(apply_label_map(labels, label_map).ravel(), minlength=len(pixels))
    except ValueError as error:
        faults.append(f"{label_png}: {error}")
    return faults, pixels
