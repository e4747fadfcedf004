"""Fixtures for the tests of checkpoints."""

import pytest
from torch import Tensor


@pytest.fixture
def uninitialized(monkeypatch):
    """Skip random initialisation, which is slow, because all weights come from files."""
    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(Tensor, name, lambda self, *_, **__: self)
