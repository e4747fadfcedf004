"""Measure the time and memory of a function call on a device."""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from studies.training_memory import counting

Step = Callable[[], object]


def peak_memory(step: Step, device: str) -> int:
    """
    Return the peak bytes that PyTorch allocates during a call, not counting earlier allocations.

    On a CPU, the peak includes the copies that oneDNN makes of convolutions' inputs and weights.

    Args:
        step: function to call.
        device: "cpu" or "cuda".
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


def seconds(step: Step, device: str) -> float:
    """Return the wall time of a call in seconds; if ``device`` is "cuda", wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def cpu_seconds(step: Step) -> float:
    """Return the CPU time of a call in seconds, summed over all threads."""
    start = time.process_time()
    step()
    return time.process_time() - start


def medians(
    steps: Sequence[Step], repeats: int, measure: Callable[[Step], float] = cpu_seconds
) -> list[float]:
    """
    Measure each step several times, and return each step's median.

    In each of ``repeats`` rounds all steps run once, so that other programs affect all equally.
    """
    rounds = [[measure(step) for step in steps] for _ in range(repeats)]
    return [statistics.median(values) for values in zip(*rounds, strict=True)]


def saved_bytes(forward: Callable[[], Any], without: nn.Module | None = None) -> tuple[Any, int]:
    """
    Call ``forward``; return its result and the number of bytes kept for the backward pass.

    Tensors that share memory are counted once.

    Args:
        forward: function to call.
        without: module whose parameters and buffers do not count.
    """
    own = [*without.parameters(), *without.buffers()] if without is not None else []
    known = WeakIdKeyDictionary({tensor.untyped_storage(): True for tensor in own})
    sizes = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage not in known:
            known[storage] = True
            sizes.append(storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    return result, sum(sizes)


def count_head_step(
    build: Callable[[], nn.Module], channels: int, images: int, height: int, width: int
) -> tuple[int, int]:
    """
    Count the bytes that a semantic head needs for a float32 training step on FPN features.

    Args:
        build: function that makes the head.
        channels: channels of the features p2 ... p5.
        images, height, width: number and padded size of the images.

    Returns:
        number of bytes kept for the backward pass, except parameters and buffers; peak number of
        allocated bytes, including gradients, except parameters, buffers, features and labels
    """
    with counting() as allocated:
        head = build().train()
        features = {
            f"p{i}": torch.empty(images, channels, height // 2**i, width // 2**i).requires_grad_()
            for i in range(2, 6)
        }
        targets = torch.empty(images, height, width, dtype=torch.long)
        before = allocated.reset()
        (_, losses), saved = saved_bytes(lambda: head(features, targets), without=head)
        loss = sum(losses.values())
        del losses
        loss.backward()
    return saved, allocated.peak - before


def sizes(*names: str) -> Callable[[str], tuple[int, ...]]:
    """Return an argparse type for comma-separated integers, one for each of ``names``."""

    def size(text: str) -> tuple[int, ...]:
        numbers = tuple(map(int, text.split(",")))
        if len(numbers) != len(names):
            raise argparse.ArgumentTypeError(f"{text} is not {','.join(names)}")
        return numbers

    return size
