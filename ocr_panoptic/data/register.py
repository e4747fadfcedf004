"""Register data sets in Detectron2's catalogs, and look up their files, metadata and classes."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog

from ocr_panoptic.errors import MissingFileError, UserError, did_you_mean
from ocr_panoptic.formats.files import printable

from .data_file import (
    DataFile,
    DataFiles,
    datasets_root,
    files_below_root,
    folder_of,
    names_below_root,
    read_data_files,
)
from .described import read_described
from .faults import first_few


class _Registered(NamedTuple):
    origin: Path  # data file or folder
    files: tuple[Path, ...]


_registered: dict[str, _Registered] = {}  # data sets that this module has registered, by name

# Functions that register published data sets, given the wanted names. Each module of published
# data sets appends its function (data/published/register.py).
KNOWN: list[Callable[[Collection[str]], None]] = []


def register(
    name: str,
    origin: Path,
    load: Callable[[], list[dict]],
    metadata: dict,
    files: Iterable[Path] = (),
    *,
    replaces: bool = False,
) -> None:
    """
    Register a data set; replace a data set that this function registered under the same name.

    Args:
        origin: data file or folder that error messages name.
        load: function that returns the records.
        files: files and folders that must exist before the data set is used.
        replaces: whether to replace even a data set that Detectron2 or other code registered;
            otherwise, UserError is raised.
    """
    if name in DatasetCatalog:
        if name not in _registered and not replaces:
            raise UserError(
                f"{origin}: the name {name} belongs to a data set that is registered already. "
                "Give the data another name."
            )
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    DatasetCatalog.register(name, load)
    MetadataCatalog.get(name).set(**metadata)
    _registered[name] = _Registered(origin, tuple(files))


def register_data_sets(
    files: DataFiles | list[DataFile],
    wanted: Collection[str] | None = None,
    classes: Mapping[str, Any] | None = None,
    *,
    same_classes: bool = False,
) -> list[str]:
    """
    Register published data sets and splits of data files, and return the wanted names.

    Names ``<name>_<split>`` that the data files do not describe are looked up in
    ``$DETECTRON2_DATASETS/*/<name>.yaml``. UserError is raised for an unknown name.

    Args:
        wanted: names of the data sets; None stands for all splits of the data files.
        classes: metadata of a trained model; data with the same class names get its class order.
        same_classes: whether all splits of all data files must have the same classes.
    """
    described = {file.path: file for file in read_data_files(files)}
    known = {name for file in described.values() for name in file.data_sets()}
    wanted = sorted(known) if wanted is None else [*wanted]
    for register_known in KNOWN:
        register_known(wanted)
    foreign = DatasetCatalog.keys() - _registered.keys()  # registered by other code
    rest = [name for name in wanted if name not in known and name not in foreign]
    described |= {file.path: file for file in read_data_files(files_below_root(rest))}
    found = read_described([*described.values()], wanted, classes, same_classes=same_classes)
    for name, (file, source, metadata) in found.items():
        places = map(folder_of, vars(source.split).values())
        register(name, file.path, source, metadata, places)
    for name in wanted:
        if name not in DatasetCatalog:
            known = {*known, *DatasetCatalog.list(), *names_below_root()} - {name}
            raise UserError(not_registered(name) + did_you_mean(name, known))
    return wanted


def check_files(names: Iterable[str]) -> None:
    """Raise MissingFileError if a file or folder of the data sets does not exist."""
    for name in names:
        if name in _registered:
            files = [str(file) for file in _registered[name].files]
        else:  # registered by Detectron2, or with the same metadata keys
            metadata = MetadataCatalog.get(name)
            files = [metadata.get(key) for key in ("json_file", "image_root", "sem_seg_root")]
        lost = [file for file in files if file and "://" not in file and not os.path.exists(file)]
        if lost:
            raise MissingFileError(
                f"Data set {name}: not found: {first_few(lost)}. Bring back what was moved, lay "
                "the data out as datasets/README.md says, or set DETECTRON2_DATASETS."
            )


def registered_metadata(dataset_name: str) -> Metadata:
    if dataset_name not in DatasetCatalog:
        raise UserError(not_registered(dataset_name))
    return MetadataCatalog.get(dataset_name)


def class_counts(dataset_name: str) -> tuple[int, int]:
    """
    Return the numbers of thing classes and semantic classes of a registered panoptic data set.

    The semantic classes are the stuff classes and the class "things".
    """
    metadata = registered_metadata(dataset_name)
    things, stuff = (metadata.get(key) for key in ("thing_classes", "stuff_classes"))
    if not things or not stuff or stuff[0] != "things":
        raise UserError(
            f"Data set {dataset_name!r} is not laid out for Panoptic-FPN: it needs thing_classes, "
            f"and stuff_classes that begin with 'things'; found {things} and {stuff}."
        )
    return len(things), len(stuff)


def semantic_class_count(dataset_name: str) -> int:
    """Return the number of classes of a registered semantic data set."""
    classes = registered_metadata(dataset_name).get("stuff_classes")
    if not classes:
        raise UserError(f"Data set {dataset_name!r} has no semantic classes (stuff_classes).")
    return len(classes)


def not_registered(name: str) -> str:
    """Return the error message for the name of a data set that is not registered."""
    stem = printable(name.rpartition("_")[0] or name)
    return (
        f"Data set {printable(name)!r} is not registered. Describe your data in a file, as "
        f"datasets/README.md shows, and name it with --data FILE, or lay it into "
        f"{datasets_root()}/{stem}/{stem}.yaml (set DETECTRON2_DATASETS to look elsewhere)."
    )
