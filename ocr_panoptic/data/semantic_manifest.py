"""The manifest of prepared semantic data: ``dataset.json`` with another format than panoptic data.

It names the folders and the classes; nothing else is written, images and labels stay what they are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ..files import write_json
from .label_space import LabelSpace, parse_label_space
from .manifest import MANIFEST_NAME, parse_manifest, portable

FORMAT = "ocr_panoptic.prepared_semantic"
VERSION = 1
HINT = "Delete it and run datasets/prepare_semantic.py again."


@dataclass(frozen=True)
class SemanticSplit:
    """Absolute paths of one split."""

    images: Path  # folder
    labels: Path  # folder of label PNGs


@dataclass(frozen=True)
class SemanticManifest:
    name: str
    space: LabelSpace
    splits: dict[str, SemanticSplit]


def write_semantic_manifest(folder: Path, manifest: SemanticManifest) -> Path:
    """Write ``folder/dataset.json``; paths inside the folder become relative to it."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "splits": {
            split: {key: portable(path, folder) for key, path in asdict(paths).items()}
            for split, paths in manifest.splits.items()
        },
        "label_space": manifest.space.as_json(),
    }
    write_json(folder / MANIFEST_NAME, content, indent=1)
    return folder / MANIFEST_NAME


def read_semantic_manifest(path: Path) -> SemanticManifest | None:
    """Read a manifest; None where the file is a ``dataset.json`` of something else.

    Raises:
        ValueError: the file is broken, or of another version.
    """

    def parse(content: dict) -> SemanticManifest:
        splits = {
            split: SemanticSplit(**{key: path.parent / value for key, value in paths.items()})
            for split, paths in content["splits"].items()
        }
        space = parse_label_space(content["label_space"], str(path))
        return SemanticManifest(content["name"], space, splits)

    return parse_manifest(path, FORMAT, VERSION, HINT, parse)
