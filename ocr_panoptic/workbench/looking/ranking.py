"""The worst and the best images of an evaluation, and the errors in them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .figures import ImageFigures

MEANINGS = {
    "masks": "IoU below 1 of matched segments",
    "boundaries": "wrong pixels at most 5 px from a true and a predicted boundary",
    "confusions": "right place, wrong class",
    "false positives": "predicted, but not there",
    "misses": "there, but not predicted",
}


@dataclass(frozen=True)
class RankedImage:
    """
    An image with its score.

    Attributes:
        group: "worst" or "best".
        score: value in percent.
        losses: kind of error -> percent; score and losses sum to 100.
        figures: pictures; None before they are drawn, or if the data set no longer has the image.
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
    Return the worst images, then the best of the other images, by rising score.

    Images without a score are left out.
    are left out.

    Args:
        rows: table of an evaluation's images, see :func:`.read_table`.
        metric: column of the scores.
        number: number of images in each of the two groups.
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
