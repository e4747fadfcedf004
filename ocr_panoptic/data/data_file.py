"""
The data file, which describes a data set: its name, image and annotation paths, and classes.

    name: city
    panoptic:
      train: {images: train/images, annotations: train.json, segments: train/pngs}
      val:   {images: val/images,   annotations: val.json,   segments: val/pngs}

or

    name: town
    semantic:
      train: {images: train/images, labels: train/labels}
      val:   {images: val/images,   labels: val/labels}
    classes: [road, building, tree]
    ignore: 255

Paths are relative to the file's folder. Detectron2 knows each split as ``<name>_<split>``.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Union

import yaml

from ocr_panoptic.errors import MissingFileError, UserError, did_you_mean
from ocr_panoptic.formats.files import (
    as_list,
    printable,
    read_json,
    read_yaml,
    write_text,
)
from ocr_panoptic.formats.other_tools import not_a_data_file
from ocr_panoptic.formats.pictures import CHANNELS

from .faults import raise_if_any

TRAIN, VAL = "train", "val"
STEM = "{stem}"  # placeholder in a path for the name that an image and its labels share
QUOTES = f'Put patterns in quotes, such as labels: "masks/{STEM}_mask.png".'
# Data files as users name them; a DataFile stands for a file that is read already.
DataFiles = Union[str, os.PathLike, "DataFile", Iterable[Union[str, os.PathLike, "DataFile"]]]


@dataclass(frozen=True)
class PanopticSplit:
    """The files of a panoptic split."""

    images: Path  # folder
    annotations: Path  # panoptic JSON
    segments: Path  # folder of panoptic PNGs


@dataclass(frozen=True)
class SemanticSplit:
    """The files of a semantic split."""

    images: Path  # folder, or pattern of files such as "data/{stem}.jpg"
    labels: Path  # folder of label images, or pattern such as "masks/{stem}_mask.png"


_KINDS = {"panoptic": PanopticSplit, "semantic": SemanticSplit}
# Detectron2's own data sets. To import its list takes seconds.
DETECTRON2S = re.compile(
    r"(keypoints_)?coco_20(14|17)_(train|(mini)?val|valminusminival|test(-dev)?)(_100)?"
    r"(_panoptic(_separated|_stuffonly)?)?|lvis_v(0\.5|1)_(train|val|test)\w*|"
    r"cityscapes_fine_(instance|sem|panoptic)(_seg)?_(train|val|test)|"
    r"voc_20(07|12)_(train|val|trainval|test)|ade20k_sem_seg_(train|val)"
)
CLASS_KEYS = ("classes", "ignore", "flip_pairs")  # only for semantic data
FORM = "name, panoptic or semantic, and channels; with semantic also classes, ignore, flip_pairs"


@dataclass(frozen=True)
class DataFile:
    """
    The content of a data file.

    Attributes:
        kind: "panoptic" or "semantic".
        splits: dict from the name of each split to the absolute paths of its files and folders.
        channels: number of channels of the images.
        classes: for semantic data, the values of the keys "classes" (a list, or the absolute path
            of a class file), "ignore" and "flip_pairs".
    """

    path: Path
    name: str
    kind: str
    splits: dict[str, PanopticSplit] | dict[str, SemanticSplit]
    channels: int
    classes: dict[str, Any]

    def data_set(self, split: str) -> str:
        """Return the name under which a split is registered with Detectron2."""
        return f"{self.name}_{split}"

    def data_sets(self) -> list[str]:
        return [self.data_set(split) for split in self.splits]


def read_data_file(path: str | os.PathLike) -> DataFile:
    if not os.fspath(path):  # Path("") would be the current folder
        raise UserError("The path of a data file is empty; expected a path such as city.yaml.")
    path = Path(os.path.abspath(Path(path).expanduser()))
    if not path.is_file():
        raise MissingFileError(f"{printable(path)}: data file not found, or not a regular file.")
    readers = {".json": read_json, ".xml": lambda path: None}
    try:
        content = readers.get(path.suffix.lower(), read_yaml)(path)
    except UserError as error:
        if STEM.encode() not in path.read_bytes():
            raise
        raise UserError(f"{error} {QUOTES}") from error
    if not isinstance(content, dict) or not content.keys() & {"name", *_KINDS}:
        raise not_a_data_file(
            path,
            content,
            f'{printable(path)}: not a data file: the key "panoptic" or "semantic" is missing. '
            f"The keys of a data file are {FORM} (see datasets/README.md). To use annotations "
            "from another tool, import them first: ocr-panoptic import --from FORMAT --name NAME "
            "--train ... (see docs/imports.md)",
        )
    raise_if_any([f"{path}: {fault}" for fault in _faults(content)])
    kind = next(kind for kind in _KINDS if kind in content)
    folder = path.parent
    splits = {
        split: _KINDS[kind](**{key: folder / _path(value) for key, value in paths.items()})
        for split, paths in content[kind].items()
    }
    classes = {key: content[key] for key in CLASS_KEYS if key in content}
    if isinstance(classes.get("classes"), str):
        classes["classes"] = str(folder / _path(classes["classes"]))
    return DataFile(path, content["name"], kind, splits, content.get("channels", 3), classes)


def read_data_files(files: DataFiles) -> list[DataFile]:
    """Read the data files that are not read already; return a file that is named twice once."""
    named = [files] if isinstance(files, DataFile) else files
    if isinstance(named, str | os.PathLike) or not isinstance(named, Iterable):
        named = as_list(named)
    described = [
        file if isinstance(file, DataFile) else read_data_file(*as_list(file)) for file in named
    ]
    return list({file.path: file for file in described}.values())


def _path(text: str) -> Path:
    """Return a data file's path entry as a Path; backslashes from Windows become slashes."""
    return Path(text.replace("\\", "/")).expanduser()


def folder_of(path: Path) -> Path:
    """Return the folder of a path pattern with ``{stem}``; return any other path unchanged."""
    if STEM not in str(path):
        return path
    return next(place for place in path.parents if STEM not in str(place))


def write_data_file(
    path: Path,
    name: str,
    splits: dict[str, PanopticSplit] | dict[str, SemanticSplit],
    **classes: Any,
) -> None:
    """
    Write a data file; paths inside its folder become relative, so that the folder can be moved.

    Args:
        classes: for semantic data, values of the keys "classes", "ignore" and "flip_pairs".
    """
    kind = next(k for k, split in _KINDS.items() if isinstance(next(iter(splits.values())), split))
    root = os.path.abspath(path.parent)
    described = {}
    for split, paths in splits.items():
        places = {key: Path(os.path.abspath(place)) for key, place in vars(paths).items()}
        described[split] = {
            key: str(place.relative_to(root) if place.is_relative_to(root) else place)
            for key, place in places.items()
        }
    content = {"name": name, kind: described, **classes}
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=200)
    write_text(path, text)


def data_options(described: Sequence[DataFile]) -> dict[str, tuple[str, ...]]:
    """Return the overrides of config keys for training and testing on data files."""
    if not described:
        return {}
    train, val = (
        tuple(file.data_set(split) for file in described if split in file.splits)
        for split in (TRAIN, VAL)
    )
    paths = tuple(str(file.path) for file in described)
    return {"DATASETS.FILES": paths, "DATASETS.TRAIN": train, "DATASETS.TEST": val}


def check_name(name: object, splits: Iterable[object] = ()) -> None:
    """Refuse a name that is not safe in file names, or that a split shares with Detectron2."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise UserError(
            f"the name is {name!r:.100}; expected only letters, digits, '_', '-' and '.', with a "
            "letter or digit first. Put a name of digits in quotes."
        )
    for split in splits:
        if DETECTRON2S.fullmatch(f"{name}_{split}"):
            raise UserError(
                f"name {name!r}: Detectron2 already has a data set {name}_{split}. Choose another "
                "name."
            )


def _faults(content: dict) -> Iterator[str]:
    kinds = [kind for kind in _KINDS if kind in content]
    keys = ("name", "channels", *_KINDS, *(CLASS_KEYS if "semantic" in kinds else ()))
    yield from _unknown_keys(content, keys, "the file")
    splits = content[kinds[0]] if kinds else None
    own = [*splits] if isinstance(splits, dict) else []
    for name, its_splits in ((content.get("name"), own), *((split, ()) for split in own)):
        try:
            check_name(name, its_splits)
        except UserError as error:
            yield str(error)
    if (channels := content.get("channels", 3)) not in CHANNELS:
        yield f"channels is {channels!r:.100}, expected one of {', '.join(map(str, CHANNELS))}."
    if len(kinds) != 1:
        yield f"expected the key panoptic or semantic, found {'both' if kinds else 'none'}."
    elif not splits or not isinstance(splits, dict):
        yield f"{kinds[0]} must map splits (train, val) to their paths, found {splits!r:.100}."
    else:
        places = [field.name for field in fields(_KINDS[kinds[0]])]
        for split, paths in splits.items():
            yield from _split_faults(f"{kinds[0]}: {split}", paths, places)
    if kinds == ["semantic"] and "classes" not in content:
        yield '"classes" is missing. List the class names, or give the path of a class file.'


def _split_faults(where: str, paths: object, keys: list[str]) -> Iterator[str]:
    if not isinstance(paths, dict):
        yield f"{where} must have the keys {', '.join(keys)}, found {paths!r:.100}."
        return
    yield from _unknown_keys(paths, keys, where)
    for key in keys:
        if not isinstance(paths.get(key), str) or not paths[key]:
            value = f"found {paths[key]!r:.100}" if key in paths else "but it is missing"
            hint = f" {QUOTES}" if isinstance(paths.get(key), dict) else ""
            yield f"{where}: {key} must be a path, {value}.{hint}"


def _unknown_keys(content: dict, keys: Sequence[str], where: str) -> Iterator[str]:
    for key in content:
        if key not in keys:
            hint = did_you_mean(str(key), keys) or f" The valid keys are {', '.join(keys)}."
            yield f"{where} has the unknown key {key!r:.100}.{hint}"
