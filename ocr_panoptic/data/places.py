"""The folders in which data files and the data check's cache are found."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import check_output_folder

from .data_file import TRAIN, VAL, check_name


def datasets_root() -> Path:
    """Return ``$DETECTRON2_DATASETS``, by default ``datasets``, as an absolute path."""
    return Path(os.getenv("DETECTRON2_DATASETS", "datasets")).expanduser().absolute()


def cache_folder() -> Path:
    """Create and return the data check's cache folder; raise UserError if it is not writable."""
    root = os.getenv("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(os.path.abspath(root), "ocr_panoptic")
    fix = "Set XDG_CACHE_HOME to a folder that you can write to."
    check_output_folder(folder, "The data check's cache folder", fix)
    return folder


def files_below_root(data_sets: Iterable[str]) -> list[Path]:
    """Find the files ``$DETECTRON2_DATASETS/*/<name>.yaml`` of data sets ``<name>_<split>``."""
    names = dict.fromkeys(data_set.rpartition("_")[0] for data_set in data_sets)
    return [
        path
        for name in names
        if re.fullmatch(r"[\w.-]+", name)
        for path in sorted(datasets_root().glob(f"*/{name}.yaml"))
    ]


def names_below_root() -> list[str]:
    """List ``<stem>_train`` and ``<stem>_val`` for each ``$DETECTRON2_DATASETS/*/<stem>.yaml``."""
    stems = [path.stem for path in sorted(datasets_root().glob("*/*.yaml"))]
    return [f"{stem}_{split}" for stem in stems for split in (TRAIN, VAL)]


def check_new_name(name: str, splits: Iterable[str], output: Path) -> None:
    """Raise UserError if a data set name is invalid, or used by a data file outside ``output``."""
    check_name(name)
    for path in files_below_root([f"{name}_{split}" for split in splits]):
        if path.parent.resolve() != output.resolve():
            raise UserError(f"The name {name!r} is already used by {path}. Give another --name.")
