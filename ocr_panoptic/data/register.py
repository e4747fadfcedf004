"""Names of data sets in Detectron2's catalogs."""

from collections.abc import Callable
from pathlib import Path

from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog

from .manifest import MANIFEST_NAME, datasets_root

_registered: dict[str, Path] = {}  # name -> manifest or folder, of what this module has registered


def register(name: str, origin: Path, load: Callable[[], list[dict]], metadata: dict) -> None:
    """Register a data set, in place of one that this function has registered under its name.

    Args:
        origin: the manifest or folder, for messages.
        load: returns the records.

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
    _registered[name] = origin


def registered_metadata(dataset_name: str) -> Metadata:
    """
    Raises:
        ValueError: no data set of that name is registered.
    """
    if dataset_name not in DatasetCatalog:
        prepared = [name for name, origin in _registered.items() if origin.name == MANIFEST_NAME]
        raise ValueError(
            f"Data set {dataset_name!r} is not registered. Prepared data sets here: "
            f"{', '.join(sorted(prepared)) or 'none'} (under {datasets_root()}; set "
            "DETECTRON2_DATASETS to look elsewhere, prepare with datasets/prepare_panoptic.py or "
            "prepare_semantic.py)."
        )
    return MetadataCatalog.get(dataset_name)
