"""The manifest of prepared panoptic data: ``dataset.json``, which says where everything lies."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .categories import Category, parse_categories
from .files import write_json

MANIFEST_NAME = "dataset.json"
FORMAT = "ocr_panoptic.prepared"
VERSION = 1


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
    folder = Path(os.path.abspath(folder))  # links stay links

    def portable(path: Path) -> str:
        path = Path(os.path.abspath(path))
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)

    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "splits": {
            split: {key: portable(path) for key, path in asdict(paths).items()}
            for split, paths in manifest.splits.items()
        },
        "categories": [category.as_json() for category in manifest.categories],
    }
    write_json(folder / MANIFEST_NAME, content, indent=1)
    return folder / MANIFEST_NAME


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None where the file is a ``dataset.json`` of something else.

    Raises:
        ValueError: the file is broken, or of another version.
    """
    hint = (
        "Delete it and the files beside it that datasets/prepare_panoptic.py wrote, "
        "and run that again."
    )
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        if content["version"] != VERSION:
            raise ValueError(f"version is {content['version']}, expected {VERSION}")
        splits = {
            split: PreparedSplit(**{key: path.parent / value for key, value in paths.items()})
            for split, paths in content["splits"].items()
        }
        return Manifest(content["name"], parse_categories(content["categories"], str(path)), splits)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a usable manifest ({error}). {hint}") from error
