"""The manifest of prepared panoptic data: ``dataset.json``, which says where everything lies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from ..files import write_json
from .categories import Category, parse_categories

MANIFEST_NAME = "dataset.json"
FORMAT = "ocr_panoptic.prepared"
VERSION = 1

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class PreparedSplit:
    """Absolute paths of one split."""

    images: Path  # folder
    panoptic_json: Path
    panoptic_root: Path  # folder of panoptic PNGs
    sem_seg_root: Path  # folder of semantic PNGs
    instances_json: Path


@dataclass(frozen=True)
class Manifest:
    name: str
    categories: list[Category]  # in ascending order of ids
    splits: dict[str, PreparedSplit]


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write ``folder/dataset.json``; paths inside the folder become relative to it, so that the
    folder can be moved."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "splits": {
            split: {key: portable(path, folder) for key, path in asdict(paths).items()}
            for split, paths in manifest.splits.items()
        },
        "categories": [category.as_json() for category in manifest.categories],
    }
    write_json(folder / MANIFEST_NAME, content, indent=1)
    return folder / MANIFEST_NAME


def portable(path: Path, folder: Path) -> str:
    """The path relative to the folder where it is inside, else absolute. Links stay links."""
    path, folder = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None where the file is a ``dataset.json`` of something else.

    Raises:
        ValueError: the file is broken, or of another version.
    """

    def parse(content: dict) -> Manifest:
        splits = {
            split: PreparedSplit(**{key: path.parent / value for key, value in paths.items()})
            for split, paths in content["splits"].items()
        }
        return Manifest(content["name"], parse_categories(content["categories"], str(path)), splits)

    hint = (
        "Delete it and the files beside it that datasets/prepare_panoptic.py wrote, "
        "and run that again."
    )
    return parse_manifest(path, FORMAT, VERSION, hint, parse)


def parse_manifest(
    path: Path, format: str, version: int, hint: str, parse: Callable[[dict], Parsed]
) -> Parsed | None:
    """``parse`` applied to a manifest's content; None where the file is of another format.

    Raises:
        ValueError: the file is broken, or of another version; with the hint.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("format") != format:
            return None
        if content["version"] != version:
            raise ValueError(f"version is {content['version']}, expected {version}")
        return parse(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a usable manifest ({error}). {hint}") from error
