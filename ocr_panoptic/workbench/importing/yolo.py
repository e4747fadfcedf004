"""
Reads YOLO segmentation: a text file for each image, with a line for each object.

A line is ``class x y x y ...``: the corners of a polygon relative to the image's width and height.
``data.yaml`` has the names of the classes and the folders of images. The path of a text file is the
path of its image, with ``labels`` instead of ``images`` and the suffix ``.txt``.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ocr_panoptic.data.faults import first_few, raise_if_any, repeated
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable, read_yaml

from .annotated_image import AnnotatedImage, Segment
from .masks import corners_of, is_box, is_traced, mask_of_polygons
from .reading import Annotations, files_below, image_file, read_each, read_lines, tails

logger = logging.getLogger(__name__)

SPLITS = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}  # split -> YAML keys
LIST = ".txt"
BOX = 5  # words in a line of YOLO detection (class, centre, size), which has no outline


def splits_of_yolo(source: Path) -> dict[str, tuple[Path, str | None]]:
    """Return, for each split in ``data.yaml``, the path of ``data.yaml`` and the split's name."""
    source, content = _read(source)
    return {split: (source, split) for split in _places(content, source)}


def read_yolo(
    source: Path, images: Path | None = None, part: str | None = None, polygons: str | None = None
) -> Annotations:
    """
    Return the annotated images that ``data.yaml`` lists.

    An image without a text file has no objects.

    Args:
        images: folder of images; None for the folders that ``data.yaml`` names.
        part: split to read: "train", "val" or "test"; None for all splits.
    """
    source, content = _read(source)
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise UserError(f'{source}: expected the key "names" with a list of class names.')
    names = {number: str(name) for number, name in names.items()}
    for name, times in repeated(names.values()):
        raise UserError(f"{source}: the class {printable(name)} is listed {times} times.")
    places = [images] if images else []
    for split, listed in {} if images else _places(content, source).items():
        places += listed if part in (None, split) else []
    # Two splits often have the same folder.
    places = list({place.resolve(): place for place in places}.values())
    if part not in (None, "train"):  # Roboflow writes empty folders for splits without images
        places = [place for place in places if not place.is_dir() or any(place.iterdir())]
    files = [file for place in places for file in _images_of(place)]
    root = Path(os.path.commonpath([file.parent for file in files] or [source.parent]))
    for place in places:
        _warn_of_lost_labels(place, files)
    return Annotations(
        [(str(_labels_path(file)), file) for file in files],
        lambda file: image_file(root, [file.relative_to(root).as_posix()]),
        partial(_read_image, names=names, polygons=polygons),
    )


def _read(source: Path) -> tuple[Path, dict]:
    if source.is_dir() and len(files := sorted(source.glob("*.y*ml"))) == 1:
        source = files[0]
    if not source.is_file():
        raise MissingFileError(f"{source}: file not found. Give YOLO's data.yaml.")
    content = read_yaml(source)
    return source, content if isinstance(content, dict) else {}


def _places(content: dict, source: Path) -> dict[str, list[Path]]:
    """
    Return the image folders and image lists (text files) of each split in ``data.yaml``.

    A missing test split is left out. If ``data.yaml`` names no split, the usual folders are
    searched. The first folders of a path are dropped one by one until the path exists: Roboflow
    writes ``../train/images`` for ``train/images``.
    """
    fix = f"Name the folders of images yourself: --train {source.name} FOLDER [--val ...]."
    base = source.parent / str(content.get("path") or "")
    known = [key for keys in SPLITS.values() for key in keys]
    if not content.keys() & {*known}:
        usual = {key: (f"images/{key}", f"{key}/images") for key in known}
        content = {key: [f for f in usual[key] if (base / f).is_dir()] for key in known}
    places: dict[str, list[Path]] = {}
    for split, keys in SPLITS.items():
        for key in keys:
            entries = content.get(key) or []
            for entry in entries if isinstance(entries, list) else [entries]:
                tried = (base / str(entry), *(source.parent / tail for tail in tails(str(entry))))
                place = next((p for p in tried if p.is_dir() or _is_list(p)), None)
                if place is None and split != "test":
                    raise UserError(
                        f"{source}: {key}: {printable(entry)} is neither a folder nor a list of "
                        f"images ({LIST}). {fix}"
                    )
                if place and not place.resolve().is_relative_to(source.parent.resolve()):
                    raise UserError(
                        f"{source}: {key}: {printable(entry)} is outside the folder of "
                        f"{source.name}. {fix}"
                    )
                if place:
                    places.setdefault(split, []).append(place)
    if not places:
        raise UserError(f"{source}: lists no image folders (train, val, valid, test). {fix}")
    return places


def _is_list(path: Path) -> bool:
    return path.suffix.lower() == LIST and path.is_file()


def _images_of(place: Path) -> list[Path]:
    """
    Return the images in a folder, or in a text file with a path on each line.

    The first folders of a path are dropped one by one until the path exists below the text file's
    folder: Datumaro and CVAT write "data/" before each path.
    """
    if _is_list(place):
        files = []
        for name in filter(None, read_lines(place)):
            tried = (place.parent / tail for tail in tails(name))
            found = next((path for path in tried if path.exists()), None)
            if found is None:
                raise_if_any([f"{place}: {fault}" for fault in file_name_faults(name)])
            files.append(found or place.parent / name)
        if not files:
            raise UserError(f"{place}: the list of images is empty.")
    else:
        files = files_below(place)
    without = sum(not _labels_path(file).exists() for file in files)
    if without == len(files):
        raise UserError(
            f"{place}: found {without} image(s), but no label files (.txt) for them in "
            f"{_labels_path(files[0]).parent}. If the labelled images are elsewhere, name "
            "their folder after data.yaml: --train data.yaml IMAGES."
        )
    if without:
        logger.info(
            f"{place}: no label file (.txt), so no objects, for {without} of {len(files)} images."
        )
    return files


def _labels_path(image: Path) -> Path:
    """Return the path of an image's text file; the last folder ``images`` becomes ``labels``."""
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
        logger.warning(f"{labels}: {len(lost)} label file(s) without an image: {names}")


def _read_image(
    image: AnnotatedImage, file: Path, names: Mapping[int, str], polygons: str | None
) -> AnnotatedImage:
    def segment(words: list[str]) -> Segment:
        number = int(word) if (word := words[0].removesuffix(".0")).isdecimal() else -1
        if number not in names:
            raise UserError(f"names in data.yaml has no class {printable(words[0])[:100]}")
        corners = corners_of([float(word) for word in words[1:]]) * (image.width, image.height)
        mask = mask_of_polygons([corners], image.height, image.width, polygons)
        digits = max((len(word.partition(".")[2]) for word in words[1:]), default=0)
        step = max(image.width, image.height) / 10**digits
        traced = is_traced(corners, step)
        return Segment(names[number], mask, True, is_box=is_box(corners), is_traced=traced)

    path = _labels_path(file)
    lines = enumerate(read_lines(path) if path.exists() else [], 1)
    places = [(f"line {number}", line.split()) for number, line in lines if line]
    polygons_only = [(place, words) for place, words in places if len(words) != BOX]
    left_out = ["box"] * (len(places) - len(polygons_only))
    return replace(image, segments=list(read_each(polygons_only, segment)), left_out=left_out)
