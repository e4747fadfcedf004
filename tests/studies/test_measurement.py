"""Time and memory of a step."""

import pytest
import torch

from ocr_panoptic.engine.run_info import machine_name
from studies.measurement import peak_memory, seconds


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
