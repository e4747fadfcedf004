"""Confidence intervals of means over a few runs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The confidence interval of a mean (Student's t), from mean - half to mean + half."""

    mean: float
    half: float | None  # None for a single value
    values: int  # number of averaged values

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        half, n = None, len(values)
        if n > 1:
            half = student_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)
        return cls(statistics.fmean(values), half, n)

    @property
    def ends(self) -> str:
        """Return both ends as text, "[-0.10, +0.30]", or "" if there is only one value."""
        if self.half is None:
            return ""
        return f"[{self.mean - self.half:+.2f}, {self.mean + self.half:+.2f}]"

    @property
    def excludes_zero(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half


def student_quantile(freedom: int) -> float:
    """
    Return the t such that a Student's t variable lies in -t..t with probability CONFIDENCE.

    ``freedom`` is the number of degrees of freedom.
    """
    low, high = 0.0, math.pi / 2  # bounds of the angle atan(t / sqrt(freedom))
    while (angle := (low + high) / 2) not in (low, high):
        # Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4
        odd, total = freedom % 2, 0.0
        term = math.cos(angle) ** odd
        for power in range(odd, freedom - 1, 2):
            total += term
            term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
        total *= math.sin(angle)
        probability = 2 / math.pi * (angle + total) if odd else total
        low, high = (angle, high) if probability < CONFIDENCE else (low, angle)
    return math.sqrt(freedom) * math.tan(angle)


def gain_text(interval: Interval | None) -> str:
    """Return the mean and its interval as text, the mean in bold if the interval excludes 0."""
    if interval is None:
        return ""
    mean = f"{interval.mean:+.2f}"
    mean = f"**{mean}**" if interval.excludes_zero else mean
    return f"{mean} {interval.ends}".rstrip()
