"""Paths and classes of the scenes that annotation tools have exported for the tests."""

from pathlib import Path

from generate_scenes import CATEGORIES
from ocr_panoptic.workbench.importing.kinds import Kinds

EXPORTS = Path(__file__).parents[1] / "workbench/importing/exports"
IMAGES = EXPORTS / "images"
KINDS = Kinds(
    *(tuple(c["name"] for c in CATEGORIES if c["isthing"] == isthing) for isthing in (1, 0))
)
