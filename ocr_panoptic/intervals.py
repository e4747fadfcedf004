"""Confidence intervals of means, of a few runs each."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """
    The confidence interval of a mean (Student's t): of 100 such intervals, 95 hold what they
    estimate, if the values are normally distributed.

    Attributes:
        mean: mean of the values.
        half: the interval is mean - half to mean + half; None for a single value.
        values: number of values.
    """

    mean: float
    half: float | None
    values: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        half = None
        if len(values) > 1:
            error = statistics.stdev(values) / math.sqrt(len(values))
            half = student_quantile(len(values) - 1) * error
        return cls(statistics.fmean(values), half, len(values))

    @property
    def ends(self) -> str:
        """Return both ends as text, "[-0.10, +0.30]"; there are several values."""
        return f"[{self.mean - self.half:+.2f}, {self.mean + self.half:+.2f}]"

    @property
    def excludes_zero(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half


def student_quantile(freedom: int) -> float:
    """
    Return t for which Student's variable lies between -t and t with a probability of CONFIDENCE.

    Args:
        freedom: degrees of freedom, at least 1.
    """
    low, high = 0.0, math.pi / 2  # of atan(t / sqrt(freedom))
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _probability(middle, freedom) < CONFIDENCE else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _probability(angle: float, freedom: int) -> float:
    """Return the probability of -t to t, where t is the root of ``freedom`` times the tangent of
    ``angle`` (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term = math.cos(angle) ** odd
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    product = math.sin(angle) * total
    return 2 / math.pi * (angle + product) if odd else product
