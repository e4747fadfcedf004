"""Generators that are seeded in every iteration."""

import random
import traceback

import numpy as np
import torch

from ocr_panoptic import seeding
from ocr_panoptic.seeding import seed_generators


def test_seeding_costs_no_look_at_the_stack(monkeypatch):
    """PyTorch's own keeps the stack for every kind of device that is not in use."""

    def drawn() -> tuple:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    seed_generators(3, 0, 7)
    expected = drawn()
    torch.manual_seed(0)
    monkeypatch.setattr(traceback, "format_stack", lambda: 1 / 0)
    seed_generators(3, 0, 7)
    assert drawn() == expected
    seed_generators(3, 0, 8)
    assert not {*drawn()} & {*expected}


def test_seeds_stay_those_of_former_runs():
    """A run that is resumed draws what it would have drawn; worked out by NumPy's classes."""
    words = np.random.SeedSequence((3, 0, 70000)).generate_state(4)
    seed_generators(3, 0, 70000)
    assert np.random.rand() == np.random.RandomState(words).rand()  # noqa: NPY002
    assert random.random() == random.Random(words.tobytes()).random()
    assert torch.initial_seed() == int(words[0]) + (int(words[1]) << 32)


def test_every_gpu_is_seeded(monkeypatch):
    seeds = []
    monkeypatch.setattr(seeding, "_has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    seed_generators(3, 0, 7)
    assert seeds == [torch.initial_seed()]
