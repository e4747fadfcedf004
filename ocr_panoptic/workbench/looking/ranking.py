"""The worst and the best images of an evaluation, and what went wrong in them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .figures import ImageFigures

MEANINGS = {
    "masks": "what matched segments lack to an IoU of 1",
    "boundaries": "wrong pixels at most 5 px from a true and a predicted boundary",
    "confusions": "the place is right and the class is not",
    "false positives": "something is predicted that is not there",
    "misses": "something is not found",
}


@dataclass(frozen=True)
class RankedImage:
    """
    An image with its score.

    Attributes:
        group: "worst" or "best".
        score: value in percent.
        losses: kind of error -> percent; with the score they sum to 100.
        figures: its pictures; None before they are drawn, or if the image is gone.
    """

    file_name: str
    group: str
    score: float
    losses: Mapping[str, float]
    figures: ImageFigures | None = None

    @property
    def name(self) -> str:
        return Path(self.file_name).name


def ranked_images(rows: Sequence[Mapping[str, str]], metric: str, number: int) -> list[RankedImage]:
    """
    Return the worst images, the worst first, and of the others the best ones, the best last. Images
    without a score are left out.

    Args:
        rows: table of the images of an evaluation, see :func:`.read_table`.
        metric: column of the scores.
        number: how many of the worst, and of the best.
    """
    kinds = [kind for kind in MEANINGS if any(kind in row for row in rows)]
    scored = sorted(
        (row for row in rows if metric in row),
        key=lambda row: (float(row[metric]), row["file_name"]),
    )
    groups = (
        ("worst", scored[:number]),
        ("best", scored[max(number, len(scored) - number) :]),
    )
    return [
        RankedImage(
            row["file_name"],
            group,
            float(row[metric]),
            {kind: float(row.get(kind, math.nan)) for kind in kinds},
        )
        for group, some in groups
        for row in some
    ]
