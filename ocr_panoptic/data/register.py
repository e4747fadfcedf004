"""Names of data sets in Detectron2's catalogs."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog

from .faults import first_few
from .manifest import (
    MANIFEST_NAME,
    check_name,
    datasets_root,
    is_seen,
    manifests,
    names_in,
    read_content,
)


class _Registered(NamedTuple):
    origin: Path  # manifest or folder
    files: tuple[Path, ...]


_registered: dict[str, _Registered] = {}  # name -> what this module has registered


def register(
    name: str,
    origin: Path,
    load: Callable[[], list[dict]],
    metadata: dict,
    files: Iterable[Path] = (),
) -> None:
    """Register a data set, in place of one that this function has registered under its name.

    Args:
        origin: the manifest or folder, for messages.
        load: returns the records.
        files: and folders that :func:`check_files` looks for.

    Raises:
        ValueError: the name belongs to Detectron2 or other code.
    """
    if name in DatasetCatalog:
        if name not in _registered:
            raise ValueError(
                f"{origin}: the name {name} belongs to a data set that is registered already. "
                "Prepare the data under another --name."
            )
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    DatasetCatalog.register(name, load)
    MetadataCatalog.get(name).set(**metadata)
    _registered[name] = _Registered(origin, tuple(files))


def check_files(names: Iterable[str]) -> None:
    """Look for the files and folders of data sets, before hours are spent on some of them. Nothing
    is read.

    Raises:
        FileNotFoundError: some are missing.
    """
    for name in names:
        if name in _registered:
            files = map(str, _registered[name].files)
        else:  # Detectron2's, or of other code that names them as it does
            metadata = MetadataCatalog.get(name)
            files = (metadata.get(key) for key in ("json_file", "image_root", "sem_seg_root"))
        lost = [file for file in files if file and "://" not in file and not os.path.exists(file)]
        if lost:
            raise FileNotFoundError(
                f"Data set {name}: not found: {first_few(lost)}. Bring back what was moved, lay "
                "the data out or prepare them as datasets/README.md says, or set "
                "DETECTRON2_DATASETS."
            )


def check_new_name(name: str, splits: Iterable[str], output: Path) -> None:
    """Whether data prepared in the folder ``output`` can be registered as ``<name>_<split>``.

    Raises:
        ValueError: the name is no file name; or one of these belongs to Detectron2, or to data
            that are found in another folder.
    """
    check_name(name)
    names = {f"{name}_{split}" for split in splits}
    taken = sorted(key for key in names if key in DatasetCatalog and key not in _registered)
    if taken:
        raise ValueError(
            f"Data set name {name!r}: {', '.join(taken)} belongs to a data set that Detectron2 "
            "knows already. Give another --name."
        )
    for path in manifests(datasets_root()) if is_seen(output) else ():
        if os.path.abspath(path.parent) == os.path.abspath(output):
            continue
        try:
            common = names & set(names_in(read_content(path), path))
        except (OSError, ValueError):  # broken, or another program's: it has no name to respect
            continue
        if common:
            raise ValueError(
                f"Data set name {name!r}: {path} has it already. Give another --name, or move "
                "that folder away."
            )


def registered_metadata(dataset_name: str) -> Metadata:
    """
    Raises:
        ValueError: no data set of that name is registered.
    """
    if dataset_name not in DatasetCatalog:
        prepared = [name for name, r in _registered.items() if r.origin.name == MANIFEST_NAME]
        raise ValueError(
            f"Data set {dataset_name!r} is not registered. Prepared data sets here: "
            f"{', '.join(sorted(prepared)) or 'none'} (under {datasets_root()}; set "
            "DETECTRON2_DATASETS to look elsewhere, prepare with datasets/prepare_panoptic.py or "
            "prepare_semantic.py)."
        )
    return MetadataCatalog.get(dataset_name)
