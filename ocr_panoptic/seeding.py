"""Random generators whose state follows from where a training is, not from how it came there."""

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_has_cuda = functools.cache(torch.cuda.is_available)


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch, on every device, by nonnegative numbers."""
    seed = _seed_cpu(numbers)
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed formats the stack for each kind of device that is not in use.
    if _has_cuda():
        torch.cuda.manual_seed_all(seed)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@contextmanager
def seeded_generators(*numbers: int) -> Iterator[None]:
    """Seed the generators of the CPU by nonnegative numbers within the block; after the block they
    go on as if it had not been."""
    with _kept_cpu():
        torch.default_generator.manual_seed(_seed_cpu(numbers))
        yield


@contextmanager
def kept_generators() -> Iterator[None]:
    """Let the generators of all devices go on after the block as if it had not been."""
    had_cuda, seed = torch.cuda.is_initialized(), torch.initial_seed()
    cuda = torch.cuda.get_rng_state_all() if had_cuda else []
    with _kept_cpu():
        try:
            yield
        finally:
            if had_cuda:
                torch.cuda.set_rng_state_all(cuda)
            elif _has_cuda():  # as they would have begun
                torch.cuda.manual_seed_all(seed)
            torch.default_generator.manual_seed(seed)  # initial_seed() is that of the caller again


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
    """Seed the generators of Python and NumPy; returns a seed for PyTorch's."""
    # The same words as of a tuple, which takes twice as long.
    words = np.random.SeedSequence(np.array(numbers, np.uint32)).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)  # noqa: NPY002 - Detectron2's augmentations draw from this one
    return words.view(np.uint64).item(0)
