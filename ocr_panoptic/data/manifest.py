"""The manifest of prepared data: ``dataset.json``, which says where everything lies.

Panoptic and semantic data have a format each, see :mod:`.panoptic.manifest` and
:mod:`.semantic.manifest`.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.files import printable, read_json, write_json

logger = logging.getLogger(__name__)

MANIFEST_NAME = "dataset.json"
MAX_BYTES = 64 << 20  # of a manifest: names, paths and classes


def datasets_root() -> Path:
    """Detectron2's folder of data sets: ``$DETECTRON2_DATASETS``, by default ``datasets``."""
    return Path(os.getenv("DETECTRON2_DATASETS", "datasets")).expanduser()


def check_name(name: str) -> None:
    """Raise ValueError for a data set's name that is no file name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(
            f"Data set name {name!r}: use letters, digits, '_', '-' and '.' (it names a folder)."
        )


def is_seen(folder: Path) -> bool:
    """Whether data prepared in the folder are found: it lies directly below the root."""
    parent = os.path.dirname(os.path.abspath(folder))
    return os.path.realpath(parent) == os.path.realpath(datasets_root())


def warn_if_unseen(folder: Path) -> None:
    """Warn where the commands do not find data prepared in the folder."""
    if not is_seen(folder):
        logger.warning(
            "%s is not directly below DETECTRON2_DATASETS=%s: set DETECTRON2_DATASETS=%s for the "
            "commands that are to find the data there.",
            folder,
            datasets_root(),
            Path(os.path.abspath(folder)).parent,
        )


def manifests(root: Path) -> list[Path]:
    """Those of all data prepared directly below the folder."""
    return sorted(root.glob(f"*/{MANIFEST_NAME}"))


def read_content(path: Path) -> dict:
    """The JSON object of a manifest, or of another program's file of that name.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is none.
    """
    content = read_json(path, MAX_BYTES)
    return content if isinstance(content, dict) else {}


def names_in(content: dict, path: Path) -> list[str]:
    """The names under which a manifest's splits are registered.

    Raises:
        ValueError: it has no usable ones.
    """
    name, splits = content.get("name"), content.get("splits")
    try:
        if not isinstance(splits, dict):
            raise ValueError(f"'splits' must be an object, found {splits!r:.100}")
        for part in (name, *splits):
            check_name(part)
    except ValueError as error:
        raise ValueError(f"{path}: not a usable manifest ({error}).") from error
    return [f"{name}_{split}" for split in splits]


def mark_incomplete(folder: Path) -> None:
    """Let what is prepared in the folder, if anything is, not be used: its files will change."""
    path = folder / MANIFEST_NAME
    if path.exists() and "complete" in (content := read_content(path)):
        write_json(path, {**content, "complete": False}, indent=1)


def portable(path: Path, folder: Path) -> str:
    """The path relative to the folder where it is inside, else absolute. Links stay links."""
    path, folder = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


@dataclass(frozen=True)
class Manifest:
    """
    Attributes:
        name: data sets are registered as ``<name>_<split>``.
        classes: categories or label space.
        splits: name -> absolute paths, an instance of the format's split.
        complete: every file that the preparation writes has been written.
        channels: of the images.
    """

    name: str
    classes: Any
    splits: dict[str, Any]
    complete: bool = True
    channels: int = 3


@dataclass(frozen=True)
class ManifestFormat:
    """How ``dataset.json`` holds a :class:`Manifest` of one kind of data.

    Attributes:
        name, version: of the format.
        split: a dataclass of paths.
        written: those of them that the preparation writes.
        key: of the classes.
        as_json: the classes as JSON has them.
        parse: the classes from that and, for messages, the file's name.
        script: which prepares such data.
        hint: what to do with a file that cannot be used.
    """

    name: str
    version: int
    split: type
    written: tuple[str, ...]
    key: str
    as_json: Callable[[Any], Any]
    parse: Callable[[Any, str], Any]
    script: str
    hint: str

    def write(self, folder: Path, manifest: Manifest) -> Path:
        """Write ``folder/dataset.json``; paths inside the folder become relative to it, so that
        the folder can be moved."""
        content = {
            "format": self.name,
            "version": self.version,
            "name": manifest.name,
            "complete": manifest.complete,
            "splits": {
                split: {key: portable(path, folder) for key, path in asdict(paths).items()}
                for split, paths in manifest.splits.items()
            },
            self.key: self.as_json(manifest.classes),
        }
        if manifest.channels != 3:
            content["channels"] = manifest.channels
        write_json(folder / MANIFEST_NAME, content, indent=1)
        return folder / MANIFEST_NAME

    def manifest(self, content: dict, path: Path) -> Manifest:
        """The manifest of a file's content.

        Raises:
            ValueError: it is broken, or of another version; with the hint.
        """
        try:
            if content["version"] != self.version:
                raise ValueError(f"version is {content['version']}, expected {self.version}")
            splits = {
                split: self.split(**{key: path.parent / value for key, value in paths.items()})
                for split, paths in content["splits"].items()
            }
            classes = self.parse(content[self.key], str(path))
            channels = content.get("channels", 3)
            if type(channels) is not int or channels < 1:
                raise ValueError(f"channels is {channels!r:.100}, expected a number from 1 on")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = "; ".join(error.faults[:3]) if isinstance(error, DataFaults) else error
            reason = printable(reason)[:1000]
            raise ValueError(f"{path}: not a usable manifest ({reason}). {self.hint}") from error
        # Earlier versions did not say it. It is known where the manifest is all that is written.
        complete = content.get("complete", not self.written) is True
        return Manifest(content["name"], classes, splits, complete, channels)

    def complete_manifest(self, content: dict, path: Path) -> Manifest:
        """:meth:`manifest` of data to be used.

        Raises:
            ValueError: as there, or the preparation has not come to its end.
        """
        manifest = self.manifest(content, path)
        if not manifest.complete:
            raise ValueError(
                f"{path}: the preparation of {manifest.name} has not come to its end (or was an "
                f"earlier version's), so its files may not fit together. Run {self.script} again."
            )
        return manifest

    def check_free(self, folder: Path, splits: Mapping[str, Any]) -> None:
        """Refuse to write over files that no earlier preparation of such data wrote.

        Raises:
            ValueError: there are such files; they are named.
        """
        path, former = folder / MANIFEST_NAME, None
        if path.exists() and (content := read_content(path)).get("format") == self.name:
            former = self.manifest(content, path)
        targets, own = (
            {getattr(paths, key) for paths in written.values() for key in self.written}
            for written in (splits, former.splits if former else {})
        )
        taken = [target for target in sorted(targets - own) if target.exists()]
        if path.exists() and former is None:
            taken.append(path)
        if taken:
            raise ValueError(
                f"{', '.join(map(str, taken))}: would be written over, but no earlier preparation "
                "of such data wrote it. Give another --name or --output, or move it away."
            )
