"""Time and memory of a step of computation on a device."""

import statistics
import time
from collections.abc import Callable

import torch


def peak_memory(step: Callable[[], object], device: str) -> int:
    """
    Args:
        step: what is measured.
        device: "cpu" or "cuda".

    Returns:
        bytes that PyTorch allocates on the device above what was there before, at the highest
        point of the step. On a CPU that holds the copies that oneDNN makes of a convolution's
        input and weights in layouts of its own.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def seconds(step: Callable[[], object], device: str, repeats: int = 1) -> float:
    """
    Args:
        step: what is measured.
        device: "cpu" or "cuda".
        repeats: how many times.

    Returns:
        median seconds of wall time that the step takes, the work it leaves to a GPU included
    """
    times = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
