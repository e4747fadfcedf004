"""YOLO segmentation: a text file for each image, a line for each object.

A line is ``class x y x y ...``, the corners of a polygon as shares of the image's width and height.
``data.yaml`` has the names of the classes and the folders of images; the labels of a folder lie
beside it, where ``images`` in its path is ``labels``.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ocr_panoptic.data.faults import first_few, raise_if_any, repeated
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable, read_bytes
from ocr_panoptic.formats.yaml_file import read_yaml

from .annotated_image import AnnotatedImage, Segment
from .masks import EDGES, check_points, mask_of_polygons
from .reading import MAX_FILE_BYTES, each, files_below, image_file, shapes_of

logger = logging.getLogger(__name__)

SPLITS = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}  # -> keys
LIST = ".txt"


def splits_of_yolo(source: Path) -> dict[str, tuple[Path, str]]:
    """The splits that ``data.yaml`` names."""
    content = _read(source)
    return {
        split: (source, split)
        for split, keys in SPLITS.items()
        if any(content.get(key) for key in keys)
    }


def read_yolo(
    source: Path,
    images: Path | None = None,
    part: str | None = None,
    polygons: str | None = None,
) -> Iterator[AnnotatedImage]:
    """
    An image without text file has no object, as YOLO trains on it.

    Args:
        source: ``data.yaml``.
        images: a folder of images; by default all that ``data.yaml`` names.
        part: of :data:`SPLITS`, where only its images are meant.
        polygons: key of :data:`.masks.POLYGONS`; by default "edges".

    Raises:
        FileNotFoundError: the file or a folder is missing.
        ValueError: the file names no classes or no folder of images; a folder of images of which
            none has a text file.
        DataFaults: at the end, faults of single files: lines that are no polygon (a box), or a
            class without name.
    """
    content = _read(source)
    names = _names(content, source)
    places = [images] if images else _places(content, source, part)
    found = {place: _images_of(place) for place in places}
    files = [file for listed in found.values() for file in listed]
    root = Path(os.path.commonpath([file.parent for file in files]))
    read = partial(_read_image, root=root, names=names, polygons=polygons or EDGES)
    yield from each(files, read)
    for place in places:
        if place.is_dir():
            _warn_of_lost_labels(place, files)


def _read(source: Path) -> dict:
    if not source.is_file():
        raise MissingFileError(f"{source}: not found. Give YOLO's data.yaml.")
    content = read_yaml(source)
    return content if isinstance(content, dict) else {}


def _names(content: dict, source: Path) -> dict[int, str]:
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names or not all(type(key) is int for key in names):
        raise UserError(f"{source}: expected names: with a list of class names.")
    for name, times in repeated(map(str, names.values())):
        raise UserError(f"{source}: the class {printable(name)} comes {times} times.")
    return {number: str(name) for number, name in names.items()}


def _places(content: dict, source: Path, part: str | None) -> list[Path]:
    """The folders of images, and lists of them, that ``data.yaml`` names. They must lie beside or
    below it."""
    fix = "Give the folder of images after data.yaml."
    base = source.parent / str(content.get("path") or "")
    places: dict[Path, Path] = {}
    for key in [key for split, keys in SPLITS.items() if part in (None, split) for key in keys]:
        listed = content.get(key) or []
        for entry in listed if isinstance(listed, list) else [listed]:
            # Exports of Roboflow say ../train/images and mean train/images.
            tried = (base / str(entry), source.parent / str(entry).removeprefix("../"))
            place = next((p for p in tried if p.is_dir() or (p.is_file() and _is_list(p))), None)
            if place is None:
                raise UserError(
                    f"{source}: {key}: {printable(entry)} is no folder and no list ({LIST}). {fix}"
                )
            if not place.resolve().is_relative_to(source.parent.resolve()):
                raise UserError(
                    f"{source}: {key}: {printable(entry)} leads out of the folder of "
                    f"{source.name}. {fix}"
                )
            places.setdefault(place.resolve(), place)
    if not places:
        raise UserError(f"{source}: names no folder of images (train, val, valid, test). {fix}")
    return list(places.values())


def _is_list(path: Path) -> bool:
    return path.suffix.lower() == LIST


def _images_of(place: Path) -> list[Path]:
    """Return the images of a folder, or of a list with a path on each line, relative to the
    list's folder."""
    if not _is_list(place):
        return _labelled(files_below(place), place)
    text = read_bytes(place, MAX_FILE_BYTES).decode("utf-8", "replace")
    names = [line.strip() for line in text.splitlines() if line.strip()]
    raise_if_any([f"{place}: {fault}" for name in names for fault in file_name_faults(name)])
    if not names:
        raise UserError(f"{place}: names no image.")
    return _labelled([_listed(place.parent, name) for name in names], place)


def _listed(folder: Path, name: str) -> Path:
    """The file of a name in a list. Datumaro, and so CVAT, write "data/" before those of files that
    lie beside the list."""
    beside = folder / name.removeprefix("data/")
    return beside if beside.exists() and not (folder / name).exists() else folder / name


def _labels_path(path: Path) -> Path:
    """A folder or file of images -> its labels: the last ``images`` of the path is ``labels``."""
    parts = list(path.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts)


def _labelled(files: list[Path], folder: Path) -> list[Path]:
    """The files; how many of them have no text file is told, and not all of them must."""
    without = sum(not _labels_path(file).with_suffix(".txt").exists() for file in files)
    if without == len(files):
        raise UserError(
            f"{folder}: none of the {without} images has a text file in "
            f"{_labels_path(files[0]).parent}. "
            "Name the folders of images that have, after data.yaml."
        )
    if without:
        logger.info(f"{folder}: {without} of {len(files)} images have no text file, so no object.")
    return files


def _warn_of_lost_labels(folder: Path, files: Sequence[Path]) -> None:
    labels = _labels_path(folder)
    owned = {_labels_path(file).with_suffix(".txt") for file in files}
    found = sorted(labels.rglob("*.txt")) if labels.is_dir() else []
    lost = [file for file in found if file not in owned and file.name != "classes.txt"]
    if lost:
        names = first_few([str(file.relative_to(labels)) for file in lost])
        logger.warning(f"{labels}: {len(lost)} text files have no image: {names}")


def _read_image(file: Path, root: Path, names: Mapping[int, str], polygons: str) -> AnnotatedImage:
    image = image_file(root, [file.relative_to(root).as_posix()], str(root))
    path = _labels_path(file).with_suffix(".txt")
    text = read_bytes(path, MAX_FILE_BYTES).decode("utf-8", "replace") if path.exists() else ""
    lines = enumerate(text.splitlines(), 1)
    places = ((f"{path}: line {place}", line.split()) for place, line in lines if line.strip())
    segments = shapes_of(places, lambda words: _segment(words, image, names, polygons))
    return replace(image, segments=segments)


def _segment(
    words: list[str], image: AnnotatedImage, names: Mapping[int, str], polygons: str
) -> Segment:
    number = int(words[0]) if words[0].isdecimal() else None
    if number not in names:
        raise UserError(f"the class {printable(words[0])[:100]} is not in the names of data.yaml")
    if len(words) == 5:
        raise UserError("is a box. Which pixels an object has is not said: export polygons")
    try:
        shares = [float(word) for word in words[1:]]
    except ValueError:
        shares = [float("nan")]
    if len(shares) % 2 or not np.isfinite(shares).all():
        raise UserError("expected class x y x y ..., an even number of numbers after the class")
    corners = np.reshape(shares, (-1, 2)) * (image.width, image.height)
    corners = check_points(corners, image.height, image.width)
    mask = mask_of_polygons([corners], image.height, image.width, polygons)
    return Segment(names[number], mask, instance=True)
