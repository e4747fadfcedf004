"""Seed random generators, so that a resumed run draws the same numbers as an uninterrupted run."""

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_has_cuda = functools.cache(torch.cuda.is_available)


def seed_generators(*numbers: int) -> None:
    """Seed the random generators of Python, NumPy and PyTorch (all devices) with numbers >= 0."""
    seed = _seed_cpu(numbers)
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed is slow: it formats the stack for each unused kind of device.
    if _has_cuda():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded_generators(*numbers: int) -> Iterator[None]:
    """Seed the CPU's random generators with numbers >= 0; restore them after the ``with`` block."""
    with _kept_cpu():
        torch.default_generator.manual_seed(_seed_cpu(numbers))
        yield


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the states of all devices' random generators after the ``with`` block."""
    seed = torch.initial_seed()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    with _kept_cpu():
        try:
            yield
        finally:
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            elif _has_cuda():  # the block may have started CUDA: reset it to a fresh start
                torch.cuda.manual_seed_all(seed)


@contextmanager
def _kept_cpu() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def _seed_cpu(numbers: tuple[int, ...]) -> int:
    """Seed Python's and NumPy's generators; return a seed for PyTorch's generator."""
    # SeedSequence takes half the time for an array as for a tuple, with the same result.
    words = np.random.SeedSequence(np.array(numbers, np.uint32)).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)  # noqa: NPY002 - Detectron2's augmentations use this generator
    return words.view(np.uint64).item(0)
