"""The manifest of prepared data: ``dataset.json``, which says where everything lies.

Panoptic and semantic data have a format each, see :mod:`.panoptic.manifest` and
:mod:`.semantic.manifest`.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocr_panoptic.files import write_json

MANIFEST_NAME = "dataset.json"


def datasets_root() -> Path:
    """Detectron2's folder of data sets: ``$DETECTRON2_DATASETS``, by default ``datasets``."""
    return Path(os.getenv("DETECTRON2_DATASETS", "datasets")).expanduser()


def check_name(name: str) -> None:
    """Raise ValueError for a data set's name that is no file name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(
            f"Data set name {name!r}: use letters, digits, '_', '-' and '.' (it names a folder)."
        )


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
    """

    name: str
    classes: Any
    splits: dict[str, Any]


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
        hint: what to do with a file that cannot be used.
    """

    name: str
    version: int
    split: type
    written: tuple[str, ...]
    key: str
    as_json: Callable[[Any], Any]
    parse: Callable[[Any, str], Any]
    hint: str

    def write(self, folder: Path, manifest: Manifest) -> Path:
        """Write ``folder/dataset.json``; paths inside the folder become relative to it, so that
        the folder can be moved."""
        content = {
            "format": self.name,
            "version": self.version,
            "name": manifest.name,
            "splits": {
                split: {key: portable(path, folder) for key, path in asdict(paths).items()}
                for split, paths in manifest.splits.items()
            },
            self.key: self.as_json(manifest.classes),
        }
        write_json(folder / MANIFEST_NAME, content, indent=1)
        return folder / MANIFEST_NAME

    def read(self, path: Path) -> Manifest | None:
        """A manifest; None where the file is of another format, or there is none.

        Raises:
            ValueError: the file is broken, or of another version; with the hint.
        """
        try:
            content = json.loads(path.read_bytes())
            if not isinstance(content, dict) or content.get("format") != self.name:
                return None
            if content["version"] != self.version:
                raise ValueError(f"version is {content['version']}, expected {self.version}")
            splits = {
                split: self.split(**{key: path.parent / value for key, value in paths.items()})
                for split, paths in content["splits"].items()
            }
            return Manifest(content["name"], self.parse(content[self.key], str(path)), splits)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: not a usable manifest ({error}). {self.hint}") from error

    def check_free(self, folder: Path, splits: Mapping[str, Any]) -> None:
        """Refuse to write over files that no earlier preparation of such data wrote.

        Raises:
            ValueError: there are such files; they are named.
        """
        path = folder / MANIFEST_NAME
        former = self.read(path)
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
