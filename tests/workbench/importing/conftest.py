"""Fixtures of the importers' tests."""

from pathlib import Path

import pytest
from PIL import Image

from support.annotation_files import SIZE


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with the image ``images/a.png``; tests write the annotations."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "images/a.png")
    return tmp_path
