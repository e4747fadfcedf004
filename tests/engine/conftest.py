"""Fixtures for the tests of runs."""

from argparse import Namespace

import pytest

from support.tiny_runs import SEMANTIC_CONFIG, TINY_SEMANTIC


@pytest.fixture
def semantic_args(make_args):
    def make(*opts: object, flags: tuple[str, ...] = ()) -> Namespace:
        return make_args(*TINY_SEMANTIC, *opts, config=SEMANTIC_CONFIG, flags=flags)

    return make


@pytest.fixture
def short_args(semantic_args):
    """Return a function that makes arguments for four iterations, with a checkpoint after each."""

    def make(*opts: object, flags: tuple[str, ...] = ()) -> Namespace:
        settings = ("SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 1)
        return semantic_args(*settings, *opts, flags=flags)

    return make
