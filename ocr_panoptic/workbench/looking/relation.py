"""
The relation of the pixels of one image to the object regions, as a picture to click on.

Shape letters: K classes = object regions; h, w size of the relation; H, W size of the image.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_CELLS = 64  # of the longer side of the clickable grid
SHOWN = 6  # regions of a pixel in the page, the most related first


@dataclass(frozen=True)
class RelationFigure:
    """
    Attributes:
        src: data URI of the image.
        classes: name and CSS colour of each of the K regions.
        rows, columns: of the grid of cells.
        weights: base64 of uint8 [K, rows, columns], 255 for 1.
        row, column: of the marked cell.
        true_class: name of the class that the marked cell has in truth.
    """

    src: str
    classes: Sequence[tuple[str, str]]
    rows: int
    columns: int
    weights: str
    row: int
    column: int
    true_class: str
    shown: int = SHOWN


def relation_figure(
    relation: np.ndarray, labels: np.ndarray, classes: Sequence[tuple[str, str]], src: str
) -> RelationFigure | None:
    """
    Args:
        relation: float [K,h,w], of sum 1 over K.
        labels: true labels int [H,W]; those outside 0..K-1 are void.
        classes: name and CSS colour of each region.
        src: the image as a data URI.

    Returns:
        the figure; None where no pixel has a label to be marked by.
    """
    height, width = relation.shape[1:]
    step = -(-max(height, width) // MAX_CELLS)
    grid = relation[:, step // 2 :: step, step // 2 :: step]
    rows, columns = grid.shape[1:]
    # The label in the middle of each cell.
    place = [
        ((np.arange(step // 2, side, step) + 0.5) * full / side).astype(int)
        for side, full in zip((height, width), labels.shape)
    ]
    cells = labels[place[0][:, None], place[1]]
    found, counts = np.unique(cells[(cells >= 0) & (cells < len(classes))], return_counts=True)
    if not len(found):
        return None
    label = found[counts.argmin()]  # the rarest class has most to gain from its context
    row, column = _middle(cells == label)
    weights = (255 * grid).round().astype(np.uint8)
    return RelationFigure(
        src=src,
        classes=classes,
        rows=rows,
        columns=columns,
        weights=base64.b64encode(weights.tobytes()).decode("ascii"),
        row=row,
        column=column,
        true_class=classes[label][0],
    )


def _middle(mask: np.ndarray) -> tuple[int, int]:
    """The cell of the mask that is nearest to the median of its cells."""
    places = np.argwhere(mask)
    distance = np.abs(places - np.median(places, axis=0)).sum(axis=1)
    row, column = places[distance.argmin()]
    return int(row), int(column)
