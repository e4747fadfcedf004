"""Confidence intervals against printed tables, and by hand."""

import statistics

import pytest

from ocr_panoptic.workbench.comparing.intervals import Interval, student_quantile


@pytest.mark.parametrize(
    "freedom, expected",
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)],
)
def test_quantiles_of_the_printed_table(freedom, expected):
    assert student_quantile(freedom) == pytest.approx(expected, abs=5e-4)


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
