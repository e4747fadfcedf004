"""Time and memory of a step."""

import pytest
import torch

from ocr_panoptic.engine.run_info import machine_name
from studies.measurement import peak_memory, saved_bytes, seconds
from studies.training_memory import AllocatedBytes


def test_peak_memory_hand_worked():
    """3 + 5 MiB at once, then 3 + 4; what is there before does not count."""
    mebibyte = 2**20
    kept = [torch.empty(9 * mebibyte, dtype=torch.uint8)]

    def step() -> None:
        kept.append(torch.empty(3 * mebibyte, dtype=torch.uint8))
        temporary = torch.empty(5 * mebibyte, dtype=torch.uint8)
        del temporary
        kept.append(torch.empty(4 * mebibyte, dtype=torch.uint8))

    assert peak_memory(step, "cpu") == 8 * mebibyte


def test_median_of_the_repeats(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0])  # 5, 1 and 2 seconds
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert seconds(lambda: None, "cpu", repeats=3) == 2.0


@pytest.mark.parametrize("threads, text", [(1, ", 1 thread"), (3, ", 3 threads")])
def test_the_name_says_how_many_threads(monkeypatch, threads, text):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert machine_name("cpu").endswith(text)


def test_the_name_is_that_of_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", {"cuda:1": "the second"}.get)
    assert machine_name("cuda:1") == "the second"


def test_counted_bytes_hand_worked():
    """1000 float32 are 4000 bytes: x and exp(x * x) are kept, x * x is freed."""
    x = torch.ones(1000, requires_grad=True)
    with AllocatedBytes() as allocated:
        y, saved = saved_bytes(lambda: (x * x).exp().sum())
        assert (saved, allocated.current, allocated.peak) == (8000, 4004, 8000)
        y.backward()
        assert allocated.current == 4004  # y and the gradient of x
    assert allocated.largest == 4000
    assert 8004 <= allocated.peak <= 4004 + 4 + 3 * 4000


def test_a_storage_counts_once():
    module = torch.nn.Linear(10, 10)
    x = torch.ones(5, 10, requires_grad=True)
    _, saved = saved_bytes(lambda: module(x) * x[:, :1].exp(), without=module)
    assert saved == (50 + 50 + 5) * 4  # x of the layer, its output, the exponential twice
    with AllocatedBytes() as allocated:
        y = x.detach() + 1
        views = [y.view(50), y.T, y[0]]
    assert allocated.current == 200 and len(views) == 3
