"""The manifest of prepared panoptic data."""

from dataclasses import dataclass
from pathlib import Path

from ocr_panoptic.data.manifest import ManifestFormat

from .categories import Category, parse_categories


@dataclass(frozen=True)
class RawSplit:
    """One split as the user has it."""

    images: Path  # folder
    panoptic_json: Path
    panoptic_root: Path  # folder of panoptic PNGs


@dataclass(frozen=True)
class PreparedSplit(RawSplit):
    """The same with a panoptic JSON of the preparation's, and what Panoptic-FPN trains on."""

    sem_seg_root: Path  # folder of semantic PNGs
    instances_json: Path


PANOPTIC_FORMAT = ManifestFormat(
    name="ocr_panoptic.prepared",
    version=1,
    split=PreparedSplit,
    written=("panoptic_json", "sem_seg_root", "instances_json"),
    key="categories",
    as_json=lambda categories: list(map(Category.as_json, categories)),
    parse=parse_categories,
    script="datasets/prepare_panoptic.py",
    hint="Delete it and the files beside it that datasets/prepare_panoptic.py wrote, "
    "and run that again.",
)
