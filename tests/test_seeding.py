"""Generators that are seeded in every iteration."""

import random

import numpy as np
import torch

from ocr_panoptic import seeding
from ocr_panoptic.seeding import seed_generators


def test_seeds_equal_those_of_former_runs():
    """A resumed run draws the same numbers; NumPy's classes give the expected seeds."""
    words = np.random.SeedSequence((3, 0, 70000)).generate_state(4)
    seed_generators(3, 0, 70000)
    assert np.random.rand() == np.random.RandomState(words).rand()  # noqa: NPY002
    assert random.random() == random.Random(words.tobytes()).random()
    seed = int(words[0]) + (int(words[1]) << 32)
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(seed))


def test_every_gpu_is_seeded(monkeypatch):
    seeds = []
    monkeypatch.setattr(seeding, "_has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    seed_generators(3, 0, 7)
    assert seeds == [torch.initial_seed()]
