"""
The file that describes a data set: its name, where images and annotations lie, its classes.

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

Paths are relative to the file. Each split is registered with Detectron2 as ``<name>_<split>``.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from ocr_panoptic.errors import MissingFileError, UserError, did_you_mean
from ocr_panoptic.formats.files import (
    as_list,
    check_output_folder,
    printable,
    read_json,
    read_yaml,
    write_text,
)
from ocr_panoptic.formats.pictures import CHANNELS

from .faults import DataFaults, first_few, raise_if_any

TRAIN, VAL = "train", "val"
STEM = "{stem}"  # placeholder in a path for the name that an image and its labels share
DataFiles = str | os.PathLike | Iterable[str | os.PathLike]


@dataclass(frozen=True)
class PanopticSplit:
    """
    Where the files of a panoptic split lie.

    Attributes:
        images: folder.
        annotations: panoptic JSON.
        segments: folder of panoptic PNGs.
    """

    images: Path
    annotations: Path
    segments: Path


@dataclass(frozen=True)
class SemanticSplit:
    """
    Where the files of a semantic split lie.

    Attributes:
        images: folder, or pattern of files such as "data/{stem}.jpg".
        labels: folder of label images, or pattern such as "masks/{stem}_mask.png".
    """

    images: Path
    labels: Path


_KINDS = {"panoptic": PanopticSplit, "semantic": SemanticSplit}
CLASS_KEYS = ("classes", "ignore", "flip_pairs")  # only for semantic data
FORM = "name, panoptic or semantic, channels, and of semantic data classes, ignore, flip_pairs"


@dataclass(frozen=True)
class DataFile:
    """
    The content of a data file.

    Attributes:
        kind: "panoptic" or "semantic".
        splits: name of each split -> absolute paths of its files.
        channels: number of channels of the images.
        classes: for semantic data, the CLASS_KEYS that the file has; "classes" may be the absolute
            path of a file of classes.
    """

    path: Path
    name: str
    kind: str
    splits: dict[str, PanopticSplit] | dict[str, SemanticSplit]
    channels: int
    classes: dict[str, Any]

    def data_set(self, split: str) -> str:
        """Return the name under which a split is registered."""
        return f"{self.name}_{split}"


def read_data_file(path: str | os.PathLike) -> DataFile:
    if not os.fspath(path):  # Python takes it for the current folder
        raise UserError("The name of a data file is empty.")
    path = Path(os.path.abspath(Path(path).expanduser()))
    if path.is_dir():
        path = _only_data_file(path)
    if not path.is_file():
        raise MissingFileError(f"{printable(path)}: data file not found, or not a regular file.")
    content = _content(path)
    _check_is_no_annotation(path, content)
    if not isinstance(content, dict):
        raise DataFaults([f"{path}: describes no data set; it needs the keys {FORM}."])
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


def _content(path: Path) -> Any:
    """Return the value of a YAML or JSON file; None for XML."""
    readers = {".json": read_json, ".xml": lambda path: None}
    try:
        return readers.get(path.suffix.lower(), read_yaml)(path)
    except UserError as error:
        if STEM.encode() not in path.read_bytes():
            raise
        hint = f'Patterns stand in quotes: labels: "masks/{STEM}_mask.png".'
        raise UserError(f"{error} {hint}") from error


def _only_data_file(folder: Path) -> Path:
    """Return the single YAML file of a folder, or else its single JSON file."""
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml"))
    found = found or sorted(folder.glob("*.json"))
    if len(found) != 1:
        names = f" ({first_few([path.name for path in found])})" if found else ""
        raise UserError(
            f"{printable(folder)}: is a folder with {len(found)} files{names} that could describe "
            "data. Name one; annotations of other formats are imported first (ocr-panoptic import "
            "--help)."
        )
    return found[0]


def _check_is_no_annotation(path: Path, content: object) -> None:
    """Refuse a file with annotations of another format, and name the import to type."""
    entry = content[0] if isinstance(content, list) and content else content
    known = entry if isinstance(entry, dict) else {}
    keys, images = {*known}, known.get("_via_img_metadata", known)
    values = [*images.values()] if isinstance(images, dict) else []
    things = "--things things.yaml --split 0.8"
    if path.suffix.lower() == ".xml":
        found = ("an XML file", "cvat", path, f"IMAGES {things}")
    elif entry is not content and {"data", "annotations"} <= keys:
        found = ("an export of Label Studio", "label-studio", path, f"IMAGES {things}")
    elif isinstance(content, dict) and {"images", "annotations", "categories"} <= keys:
        found = ("a COCO JSON", "coco", path, "IMAGES --rest background --split 0.8")
        listed = content["annotations"]
        first = listed[0] if isinstance(listed, list) and listed else None
        if isinstance(first, dict) and "segments_info" in first:
            raise UserError(
                f"{printable(path)}: is a panoptic JSON. A data file names it, as "
                "datasets/README.md shows: panoptic: {train: {images: FOLDER, annotations: "
                f"{path.name}, segments: FOLDER}}}}"
            )
    elif "names" in keys and {"train", "val", "nc", "path"} & keys:
        split = "" if "val" in keys else " --split 0.8"
        found = ("a data.yaml of YOLO", "yolo-seg", path, f"--rest background{split}")
    elif {"shapes", "imagePath"} <= keys:
        found = ("a file of LabelMe", "labelme", path.parent, things)
    elif values and all(isinstance(v, dict) and {"filename", "regions"} <= {*v} for v in values):
        found = ("a JSON of VIA", "via", path, f"IMAGES {things}")
    else:
        return
    what, format, source, rest = found
    raise UserError(
        f"{printable(path)}: is {what}, and describes no data. Import it, and give what that "
        f"writes: ocr-panoptic import --from {format} --name NAME --train {printable(source)} "
        f"{rest}"
    )


def _path(text: str) -> Path:
    """Return the path that a data file names; it may have been written on Windows."""
    return Path(text.replace("\\", "/")).expanduser()


def folder_of(path: Path) -> Path:
    """Return the folder that a pattern with ``{stem}`` searches, or another path unchanged."""
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
    Write a data file; paths below its folder become relative, so that the folder can be moved.

    Args:
        classes: CLASS_KEYS of semantic data.
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


def data_options(files: DataFiles) -> list:
    """
    Return the config keys for data files: their paths, training splits and evaluation splits.

    Args:
        files: a data file, several, or none.

    Returns:
        KEY VALUE KEY VALUE ..., as :func:`.load_config` takes them; empty for no file.
    """
    described = list(map(read_data_file, as_list(files)))
    if not described:
        return []
    train, val = (
        tuple(file.data_set(split) for file in described if split in file.splits)
        for split in (TRAIN, VAL)
    )
    paths = tuple(str(file.path) for file in described)
    return ["DATASETS.FILES", paths, "DATASETS.TRAIN", train, "DATASETS.TEST", val]


def datasets_root() -> Path:
    """Return ``$DETECTRON2_DATASETS``, by default ``datasets``, as an absolute path."""
    return Path(os.getenv("DETECTRON2_DATASETS", "datasets")).expanduser().absolute()


def cache_folder() -> Path:
    """Return the folder of the data check's cache; raise UserError if it cannot be written."""
    root = os.getenv("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(os.path.abspath(root), "ocr_panoptic")
    fix = "Set XDG_CACHE_HOME to a folder that you can write."
    check_output_folder(folder, "The cache of the data check,", fix)
    return folder


def files_below_root(data_sets: Iterable[str]) -> list[Path]:
    """Return the data files ``$DETECTRON2_DATASETS/*/<name>.yaml`` of ``<name>_<split>``."""
    found: dict[Path, None] = {}
    for data_set in data_sets:
        name = data_set.rpartition("_")[0]
        if re.fullmatch(r"[\w.-]+", name):
            found |= dict.fromkeys(sorted(datasets_root().glob(f"*/{name}.yaml")))
    return list(found)


def names_below_root() -> list[str]:
    """Return the data sets' names that the data files below ``$DETECTRON2_DATASETS`` define."""
    stems = [path.stem for path in sorted(datasets_root().glob("*/*.yaml"))]
    return [f"{stem}_{split}" for stem in stems for split in (TRAIN, VAL)]


def check_name(name: object) -> None:
    """Raise UserError for a data set's name that cannot be a file name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise UserError(
            f"name {name!r:.100}: use letters, digits, '_', '-' and '.', in quotes if there "
            "are only digits."
        )


def check_new_name(name: str, splits: Iterable[str], output: Path) -> None:
    """Check that data in the folder ``output`` can be registered as ``<name>_<split>``."""
    check_name(name)
    for path in files_below_root([f"{name}_{split}" for split in splits]):
        if path.parent.resolve() != output.resolve():
            raise UserError(
                f"Data set name {name!r}: {path} has it already. Give another --name, or move "
                "that file away."
            )


def _faults(content: dict) -> Iterator[str]:
    kinds = [kind for kind in _KINDS if kind in content]
    known = ("name", "channels", *_KINDS, *(CLASS_KEYS if "semantic" in kinds else ()))
    yield from _unknown_keys(content, known, "the file")
    for key in ("name", *content.get(kinds[0], ())) if _has_splits(content, kinds) else ("name",):
        try:
            check_name(content.get("name") if key == "name" else key)
        except ValueError as error:
            yield str(error)
    if (channels := content.get("channels", 3)) not in CHANNELS:
        yield f"channels is {channels!r:.100}, expected one of {', '.join(map(str, CHANNELS))}."
    if len(kinds) != 1:
        yield f"has {' and '.join(kinds) or 'neither panoptic nor semantic'}; it needs one of them."
    elif not _has_splits(content, kinds):
        yield f"{kinds[0]} must name splits (train, val), found {content[kinds[0]]!r:.100}."
    else:
        keys = [field.name for field in fields(_KINDS[kinds[0]])]
        for split, paths in content[kinds[0]].items():
            yield from _split_faults(f"{kinds[0]}: {split}", paths, keys)
    if kinds == ["semantic"] and "classes" not in content:
        yield "has no classes: give their names, or the path of a file of them."


def _has_splits(content: dict, kinds: list[str]) -> bool:
    return bool(kinds) and isinstance(content[kinds[0]], dict) and bool(content[kinds[0]])


def _split_faults(where: str, paths: object, keys: list[str]) -> Iterator[str]:
    if not isinstance(paths, dict):
        yield f"{where} must have the keys {', '.join(keys)}, found {paths!r:.100}."
        return
    yield from _unknown_keys(paths, keys, where)
    for key in keys:
        if not isinstance(paths.get(key), str) or not paths[key]:
            found = f"found {paths[key]!r:.100}" if key in paths else "it is missing"
            yield f"{where}: {key} must be a path; {found}."


def _unknown_keys(content: dict, known: Sequence[str], where: str) -> Iterator[str]:
    for key in content:
        if key not in known:
            hint = did_you_mean(str(key), known) or f" There are {', '.join(known)}."
            yield f"{where} has the unknown key {key!r:.100}.{hint}"
