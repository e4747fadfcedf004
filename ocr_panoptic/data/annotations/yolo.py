"""YOLO segmentation: a text file for each image, a line for each object.

A line is ``class x y x y ...``, the corners of a polygon as shares of the image's width and height.
``data.yaml`` has the names of the classes and the folders of images; the labels of a folder lie
beside it, where ``images`` in its path is ``labels``.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ocr_panoptic.bounded_yaml import read_yaml
from ocr_panoptic.data.faults import DataFaults, first_few
from ocr_panoptic.files import printable, read_bytes

from .annotated_image import AnnotatedImage, Segment
from .masks import check_points, mask_of_polygons
from .reading import MAX_FILE_BYTES, ImageFile, each, files_below, image_file

logger = logging.getLogger(__name__)

SPLITS = ("train", "val", "valid", "test")


def read_yolo(source: Path, images: Path | None = None) -> Iterator[AnnotatedImage]:
    """
    An image without text file has no object, as YOLO trains on it.

    Args:
        source: ``data.yaml``.
        images: a folder of images; by default all that ``data.yaml`` names.

    Raises:
        FileNotFoundError: the file or a folder is missing.
        ValueError: the file names no classes or no folder of images.
        DataFaults: at the end, faults of single files: lines that are no polygon (a box), or a
            class without name.
    """
    if not source.is_file():
        raise FileNotFoundError(f"{source}: not found. Give YOLO's data.yaml.")
    content = read_yaml(source)
    names = _names(content, source)
    folders = [images] if images else _folders(content, source)
    root = Path(os.path.commonpath(folders))
    files = [file for folder in folders for file in files_below(folder)]
    yield from each(files, lambda file: _read_image(file, root, names))
    for folder in folders:
        _warn_of_lost_labels(folder, files)


def _names(content: object, source: Path) -> dict[int, str]:
    names = content.get("names") if isinstance(content, dict) else None
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names or not all(type(key) is int for key in names):
        raise ValueError(f"{source}: expected names: with a list of class names.")
    for name, times in Counter(map(str, names.values())).items():
        if times > 1:
            raise ValueError(f"{source}: the class {printable(name)} comes {times} times.")
    return {number: str(name) for number, name in names.items()}


def _folders(content: dict, source: Path) -> list[Path]:
    """The folders of images that ``data.yaml`` names, which must lie beside or below it."""
    fix = "Give the folder of images after data.yaml."
    base = source.parent / str(content.get("path") or "")
    folders = []
    for split in SPLITS:
        listed = content.get(split) or []
        for entry in listed if isinstance(listed, list) else [listed]:
            # Exports of Roboflow say ../train/images and mean train/images.
            places = (base / str(entry), source.parent / str(entry).removeprefix("../"))
            folder = next((place for place in places if place.is_dir()), None)
            if folder is None:
                raise ValueError(f"{source}: {split}: {printable(entry)} is no folder. {fix}")
            if not folder.resolve().is_relative_to(source.parent.resolve()):
                raise ValueError(
                    f"{source}: {split}: {printable(entry)} leads out of the folder of "
                    f"{source.name}. {fix}"
                )
            if folder.resolve() not in [other.resolve() for other in folders]:
                folders.append(folder)
    if not folders:
        raise ValueError(f"{source}: names no folder of images ({', '.join(SPLITS)}). {fix}")
    return folders


def _labels_path(path: Path) -> Path:
    """A folder or file of images -> its labels: the last ``images`` of the path is ``labels``."""
    parts = list(path.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts)


def _warn_of_lost_labels(folder: Path, files: Sequence[Path]) -> None:
    labels = _labels_path(folder)
    owned = {_labels_path(file).with_suffix(".txt") for file in files}
    found = sorted(labels.rglob("*.txt")) if labels.is_dir() else []
    lost = [file for file in found if file not in owned and file.name != "classes.txt"]
    if lost:
        names = first_few([str(file.relative_to(labels)) for file in lost])
        logger.warning(f"{labels}: {len(lost)} text files have no image: {names}")


def _read_image(file: Path, root: Path, names: Mapping[int, str]) -> AnnotatedImage:
    image = image_file(root, file.relative_to(root).as_posix(), str(root))
    path = _labels_path(file).with_suffix(".txt")
    text = read_bytes(path, MAX_FILE_BYTES).decode("utf-8", "replace") if path.exists() else ""
    segments, faults = [], []
    for place, line in enumerate(text.splitlines(), 1):
        try:
            segments += [_segment(line.split(), image, names)] if line.strip() else []
        except ValueError as error:
            faults.append(f"{path}: line {place}: {error}.")
    if faults:
        raise DataFaults(faults)
    return AnnotatedImage(file, image.name, image.height, image.width, segments)


def _segment(words: list[str], image: ImageFile, names: Mapping[int, str]) -> Segment:
    number = int(words[0]) if words[0].isdecimal() else None
    if number not in names:
        raise ValueError(f"the class {printable(words[0])[:100]} is not in the names of data.yaml")
    if len(words) == 5:
        raise ValueError("is a box. Which pixels an object has is not said: export polygons")
    try:
        shares = [float(word) for word in words[1:]]
    except ValueError:
        shares = [float("nan")]
    if len(shares) % 2 or not np.isfinite(shares).all():
        raise ValueError("expected class x y x y ..., an even number of numbers after the class")
    corners = np.reshape(shares, (-1, 2)) * (image.width, image.height)
    corners = check_points(corners, image.height, image.width)
    mask = mask_of_polygons([corners], image.height, image.width)
    return Segment(names[number], mask, instance=True)
