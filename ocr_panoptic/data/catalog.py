"""Register data sets in Detectron2's catalogs, and look up their files, metadata and classes."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog

from ocr_panoptic.errors import MissingFileError, UserError, did_you_mean
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.labels import has_labels

from .data_file import DataFiles, folder_of, read_data_files
from .faults import first_few
from .metadata import complete_data_set, data_file_advice, with_defaults
from .places import datasets_root, files_below_root, names_below_root
from .sources import read_data_sets


class Registration(NamedTuple):
    """What is needed to register a data set, in this process or in another."""

    name: str
    origin: Path  # data file or folder that error messages name
    load: Callable[[], list[dict]]  # returns the records
    metadata: dict
    files: tuple[Path, ...]  # files and folders that must exist before the data set is used


_registered: dict[str, Registration] = {}  # data sets that this module has registered, by name

# Functions that register published data sets, given the wanted names. Each module of published
# data sets appends its function (data/published/register.py).
PUBLISHED: list[Callable[[Collection[str]], None]] = []


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
                f'{origin}: the name {name} is taken by another data set. Change "name" in '
                "the data file, or register the other data set under another name."
            )
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    DatasetCatalog.register(name, load)
    MetadataCatalog.get(name).set(**with_defaults(metadata))
    _registered[name] = Registration(name, origin, load, metadata, tuple(files))


def register_data_sets(
    files: DataFiles,
    wanted: Collection[str] | None = None,
    classes: Mapping[str, Any] | None = None,
    *,
    same_classes: bool = False,
) -> list[str]:
    """
    Register published data sets and splits of data files, and return the wanted names.

    Names ``<name>_<split>`` that the data files do not describe are looked up in
    ``$DETECTRON2_DATASETS/*/<name>.yaml``. Wanted data sets that other code has registered are
    completed (see :mod:`.metadata`). UserError is raised for an unknown name.

    Args:
        files: data files, as paths or as the results of :func:`.read_data_files`.
        wanted: names of the data sets; None stands for all splits of the data files.
        classes: metadata of a trained model; data whose class names are all among the model's get
            the model's classes, in its order.
        same_classes: whether all splits of all data files must have the same classes.
    """
    described = {file.path: file for file in read_data_files(files)}
    names = {name for file in described.values() for name in file.data_sets()}
    wanted = sorted(names) if wanted is None else [*wanted]
    for register_published in PUBLISHED:
        register_published(wanted)
    foreign = DatasetCatalog.keys() - _registered.keys()  # registered by other code
    rest = [name for name in wanted if name not in names and name not in foreign]
    described |= {file.path: file for file in read_data_files(files_below_root(rest))}
    data_sets = read_data_sets([*described.values()], wanted, classes, same_classes=same_classes)
    for name, (file, source, metadata) in data_sets.items():
        places = map(folder_of, vars(source.split).values())
        register(name, file.path, source, metadata, places)
    for name in wanted:
        if name not in DatasetCatalog:
            raise UserError(not_registered(name, names))
    complete_data_sets(wanted)
    return wanted


def complete_data_sets(names: Iterable[str]) -> None:
    """Complete the data sets that other code has registered; leave all other names alone."""
    for name in names:
        if name in DatasetCatalog and name not in _registered:
            complete_data_set(name)


def label_maps_of(names: Iterable[str]) -> dict[str, Mapping[int, int]]:
    """Return the label maps of those data sets that have one, by name."""
    complete_data_sets(names := [*names])
    maps = {name: MetadataCatalog.get(name).get("label_map") for name in names}
    return {name: label_map for name, label_map in maps.items() if label_map}


def registered_data(names: Iterable[str]) -> list[Registration | str]:
    """
    Return what another process needs to know these data sets too, as picklable values.

    A data set that other code has registered is given by its name; the other process must run
    that code, too.
    """
    return [_registered.get(name, name) for name in names]


def register_again(data: Iterable[Registration | str]) -> None:
    """Register the data sets of another process, from :func:`registered_data`."""
    for entry in data:
        if isinstance(entry, Registration):
            register(*entry, replaces=True)
        else:
            registered_metadata(entry)


def check_files(names: Iterable[str]) -> None:
    """Raise MissingFileError if a file or folder of the data sets does not exist."""
    keys = ("json_file", "image_root", "sem_seg_root", "panoptic_json", "panoptic_root")
    for name in names:
        if name in _registered:
            files = [str(file) for file in _registered[name].files]
        else:  # registered by Detectron2, or with the same metadata keys
            files = [MetadataCatalog.get(name).get(key) for key in keys]
        lost = [file for file in files if file and "://" not in file and not os.path.exists(file)]
        if lost:
            raise MissingFileError(
                f"Data set {name}: cannot find {first_few(lost)}. Put the data there, correct "
                "the paths in the data file, or set DETECTRON2_DATASETS to the folder that "
                "contains your data sets (see datasets/README.md)."
            )


def registered_metadata(dataset_name: str) -> Metadata:
    """Return the metadata of a registered data set, completed if other code has registered it."""
    if dataset_name not in DatasetCatalog:
        raise UserError(not_registered(dataset_name))
    complete_data_sets([dataset_name])
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
            f"Data set {dataset_name!r} cannot be used for Panoptic-FPN. Its metadata must have "
            "thing_classes, and stuff_classes that begin with 'things'; found thing_classes "
            f"{things} and stuff_classes {stuff}.{data_file_advice(dataset_name, metadata)}"
        )
    return len(things), len(stuff)


def semantic_class_count(dataset_name: str) -> int:
    """Return the number of classes of a registered semantic data set."""
    classes = registered_metadata(dataset_name).get("stuff_classes")
    if not classes:
        raise UserError(
            f"Data set {dataset_name!r} has no semantic classes. Set them: "
            f"MetadataCatalog.get({dataset_name!r}).set(stuff_classes=[...])."
        )
    return len(classes)


def has_panoptic_truth(dataset_name: str) -> bool:
    """Return whether a panoptic data set has objects and semantic labels to train on."""
    if registered_metadata(dataset_name).get("panoptic_json"):
        return True
    if dataset_name in _registered:  # a test set that a benchmark server evaluates
        return False
    records = DatasetCatalog.get(dataset_name)
    return any("annotations" in record and has_labels(record) for record in records)


def not_registered(name: str, names: Iterable[str] = ()) -> str:
    """
    Return the error message for the name of a data set that is not registered.

    ``names`` are those of the data files' data sets. A registered name is suggested only if it is
    nearer than these, because Detectron2 registers about a hundred.
    """
    stem = printable(name.rpartition("_")[0] or name)
    candidates = {*names, *names_below_root()} - {name}
    hint = did_you_mean(name, candidates) or did_you_mean(name, DatasetCatalog.list(), cutoff=0.85)
    return (
        f"Data set {printable(name)!r} is not registered.{hint} To use your own data, describe "
        "them in a data file (see datasets/README.md). Then give --data FILE, or save the file as "
        f"{datasets_root()}/{stem}/{stem}.yaml (DETECTRON2_DATASETS changes the root folder). If "
        "a Python module registers the data set, give --import MODULE."
    )
