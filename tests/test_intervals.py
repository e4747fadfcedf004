"""Confidence intervals against printed tables, integration and simulation."""

import math
import random
import statistics

import numpy as np
import pytest

from ocr_panoptic.intervals import Interval, student_quantile


@pytest.mark.parametrize(
    "freedom, expected",
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)],
)
def test_quantiles_of_the_printed_table(freedom, expected):
    assert student_quantile(freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("freedom, confidence", [(2, 0.5), (5, 0.9), (7, 0.99), (40, 0.95)])
def test_the_density_between_the_quantiles(freedom, confidence):
    t = student_quantile(freedom, confidence)
    x = np.linspace(-t, t, 20001)
    constant = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
    density = constant / math.sqrt(freedom * math.pi) * (1 + x**2 / freedom) ** -((freedom + 1) / 2)
    between = ((density[1:] + density[:-1]) / 2 * np.diff(x)).sum()
    assert between == pytest.approx(confidence, abs=1e-6)


def test_an_interval_by_hand():
    """Three differences of mean 2 and deviation 1: 4.303 / sqrt(3) to both sides."""
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval == Interval(2.0, pytest.approx(4.303 / 3**0.5, abs=1e-3), 3)
    assert not interval.excludes_zero
    assert Interval.of([-1.0, -1.2]).excludes_zero is False  # 12.706 * 0.1 = 1.27
    assert Interval.of([-1.0, -1.1]).excludes_zero is True  # 12.706 * 0.05 = 0.64
    assert Interval.of([5.0]) == Interval(5.0, None, 1)
    assert not Interval.of([5.0]).excludes_zero
    with pytest.raises(statistics.StatisticsError):
        Interval.of([])


def test_95_of_100_intervals_hold_the_mean():
    draw = random.Random(0)
    samples = [Interval.of([draw.gauss(3, 2) for _ in range(3)]) for _ in range(4000)]
    share = sum(abs(s.mean - 3) <= s.half for s in samples) / len(samples)
    assert share == pytest.approx(0.95, abs=0.015)
