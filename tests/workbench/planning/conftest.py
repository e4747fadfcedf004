"""Data sets of drawn images in files."""

import functools

import pytest

from support.drawn_data import write_panoptic, write_semantic


@pytest.fixture
def semantic(tmp_path):
    return functools.partial(write_semantic, tmp_path)


@pytest.fixture
def panoptic(tmp_path):
    return functools.partial(write_panoptic, tmp_path)
