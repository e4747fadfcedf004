"""
YOLO segmentation: a text file for each image, with a line for each object.

A line is ``class x y x y ...``: the corners of a polygon relative to the image's width and height.
``data.yaml`` has the names of the classes and the folders of images; replacing ``images`` by
``labels`` in a folder's path gives the folder of its text files.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ocr_panoptic.data.faults import DataFaults, first_few, repeated
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable, read_yaml

from .annotated_image import AnnotatedImage, Segment
from .masks import EDGES, check_points, is_box, mask_of_polygons
from .reading import Annotations, files_below, image_file, read_each, read_lines, tails

logger = logging.getLogger(__name__)

SPLITS = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}  # split -> keys
LIST = ".txt"
BOX = 5  # words in a line of YOLO detection (class, centre, size), which has no outline


def splits_of_yolo(source: Path) -> dict[str, tuple[Path, str | None]]:
    """Return the splits in ``data.yaml``. A missing test split, which is common, is left out."""
    source, content = _read(source)
    splits: dict[str, tuple[Path, str | None]] = {}
    for split, keys in SPLITS.items():
        entries = [entry for key in keys for entry in _as_list(content.get(key))]
        if split == "test" and not all(_place(content, source, entry) for entry in entries):
            logger.warning(f"{source}: test: {printable(entries)} is missing and left out.")
        elif entries:
            splits[split] = source, split
    return splits


def _as_list(value: object) -> list:
    return value if isinstance(value, list) else [value] if value else []


def _place(content: dict, source: Path, entry: object) -> Path | None:
    """
    Return the folder or list that an entry of ``data.yaml`` names, or None.

    Roboflow writes ``../train/images`` for ``train/images``; other exports have paths of another
    machine.
    """
    base = source.parent / str(content.get("path") or "")
    tried = (base / str(entry), *(source.parent / tail for tail in tails(str(entry))))
    return next((p for p in tried if p.is_dir() or (p.is_file() and _is_list(p))), None)


def read_yolo(
    source: Path,
    images: Path | None = None,
    part: str | None = None,
    polygons: str | None = None,
) -> Annotations:
    """
    Find the images that ``data.yaml`` lists. As in YOLO, images without text files have no objects.

    Args:
        source: ``data.yaml``.
        images: folder of images; the default is all folders in ``data.yaml``.
        part: key of :data:`SPLITS` whose images to return; None for all.
        polygons: value of :data:`.masks.POLYGONS`; the default is edges.
    """
    source, content = _read(source)
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise UserError(f"{source}: expected names: with a list of class names.")
    names = {number: str(name) for number, name in names.items()}
    for name, times in repeated(names.values()):
        raise UserError(f"{source}: the class {printable(name)} comes {times} times.")
    places = [images] if images else _places(content, source, part)
    files = [file for place in places for file in _images_of(place)]
    root = Path(os.path.commonpath([file.parent for file in files]))
    for place in places:
        _warn_of_lost_labels(place, files)
    return Annotations(
        [(str(_labels_path(file)), file) for file in files],
        partial(_find, root),
        partial(_read_image, names=names, polygons=polygons or EDGES),
    )


def _read(source: Path) -> tuple[Path, dict]:
    """
    Return the path of ``data.yaml`` and its content.

    If it names no images (as from the supervision package), the usual folders that exist are added.
    """
    if source.is_dir() and len(found := sorted(source.glob("*.y*ml"))) == 1:
        source = found[0]
    if not source.is_file():
        raise MissingFileError(
            f"{source}: not found, or a folder. Give YOLO's data.yaml. Its lines are train: FOLDER "
            "OF IMAGES, val: FOLDER and names: [CLASS, CLASS]."
        )
    content = read_yaml(source)
    content = content if isinstance(content, dict) else {}
    keys = [key for split in SPLITS.values() for key in split]
    if not content.keys() & {*keys}:
        for key in keys:
            usual = (f"images/{key}", f"{key}/images")
            content[key] = [folder for folder in usual if (source.parent / folder).is_dir()]
    return source, content


def _places(content: dict, source: Path, part: str | None) -> list[Path]:
    """Return the folders and lists of images in ``data.yaml``; they must lie below its folder."""
    fix = f"Give the folder of images after it: --train {source.name} FOLDER."
    places: dict[Path, Path] = {}
    for key in [key for split, keys in SPLITS.items() if part in (None, split) for key in keys]:
        for entry in _as_list(content.get(key)):
            place = _place(content, source, entry)
            if place is None and key == "test" and places:
                continue
            if place is None:
                raise UserError(
                    f"{source}: {key}: {printable(entry)} is not a folder or list ({LIST}). {fix}"
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
    """
    Return the images of a folder, or of a list with a path in each line.

    Paths are relative to the list's folder. If every image lacks its text file, this is refused.
    """
    if _is_list(place):
        names = list(filter(None, read_lines(place)))
        if not names:
            raise UserError(f"{place}: names no image.")
        files = [_listed(place, name) for name in names]
    else:
        files = files_below(place)
    without = sum(not _labels_path(file).exists() for file in files)
    if without == len(files):
        raise UserError(
            f"{place}: none of the {without} images has a text file in "
            f"{_labels_path(files[0]).parent}. "
            "Give folders of images that have text files after data.yaml."
        )
    if without:
        logger.info(f"{place}: {without} of {len(files)} images have no text file, so no objects.")
    return files


def _listed(place: Path, name: str) -> Path:
    """
    Return the file that a line of a list names.

    Datumaro and CVAT write "data/" before the names of files beside the list; other tools write
    paths of another machine.
    """
    folder, faults = place.parent, list(file_name_faults(name))
    tried = [folder / part for part in ([] if faults else [name]) + [*tails(name)]]
    found = next((path for path in tried if path.exists()), None)
    if found is None and faults:
        raise DataFaults([f"{place}: {faults[0]}"])
    return found or folder / name


def _labels_path(image: Path) -> Path:
    """Return the text file of an image: the last ``images`` in its path becomes ``labels``."""
    parts = list(image.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts).with_suffix(".txt")


def _warn_of_lost_labels(place: Path, files: Sequence[Path]) -> None:
    labels = _labels_path(place / "x").parent
    owned = {_labels_path(file) for file in files}
    found = sorted(labels.rglob("*.txt")) if place.is_dir() and labels.is_dir() else []
    lost = [file for file in found if file not in owned and file.name != "classes.txt"]
    if lost:
        names = first_few([str(file.relative_to(labels)) for file in lost])
        logger.warning(f"{labels}: {len(lost)} text files have no image: {names}")


def _find(root: Path, file: Path) -> AnnotatedImage:
    return image_file(root, [file.relative_to(root).as_posix()])


def _read_image(
    image: AnnotatedImage, file: Path, names: Mapping[int, str], polygons: str
) -> AnnotatedImage:
    path = _labels_path(file)
    lines = enumerate(read_lines(path) if path.exists() else [], 1)
    places = [(f"line {number}", line.split()) for number, line in lines if line]
    polygons_only = [(place, words) for place, words in places if len(words) != BOX]
    segment = partial(_segment, image=image, names=names, polygons=polygons)
    left_out = ["box"] * (len(places) - len(polygons_only))
    return replace(image, segments=list(read_each(polygons_only, segment)), left_out=left_out)


def _segment(
    words: list[str], image: AnnotatedImage, names: Mapping[int, str], polygons: str
) -> Segment:
    number = int(word) if (word := words[0].removesuffix(".0")).isdecimal() else -1
    if number not in names:
        raise UserError(f"the class {printable(words[0])[:100]} is not in the names of data.yaml")
    if len(words) % 2 == 0:
        raise UserError(
            f"has {len(words) - 1} coordinates, expected x and y of each corner, without "
            "confidence or key points"
        )
    shares = np.reshape([float(word) for word in words[1:]], (-1, 2))
    corners = check_points(shares * (image.width, image.height), image.height, image.width)
    mask = mask_of_polygons([corners], image.height, image.width, polygons)
    return Segment(names[number], mask, instance=True, is_box=is_box(corners))
