"""The manifest of prepared semantic data.

It names the folders and the classes; nothing else is written, images and labels stay what they are.
"""

from dataclasses import dataclass
from pathlib import Path

from ocr_panoptic.data.manifest import ManifestFormat

from .label_space import LabelSpace, parse_label_space


@dataclass(frozen=True)
class SemanticSplit:
    """Absolute paths of one split."""

    images: Path  # folder
    labels: Path  # folder of label PNGs


SEMANTIC_FORMAT = ManifestFormat(
    name="ocr_panoptic.prepared_semantic",
    version=1,
    split=SemanticSplit,
    written=(),
    key="label_space",
    as_json=LabelSpace.as_json,
    parse=parse_label_space,
    script="datasets/prepare_semantic.py",
    hint="Delete it and run datasets/prepare_semantic.py again.",
)
