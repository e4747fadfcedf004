"""The confusion matrix on disk: all counts as CSV, and a picture."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

NAME = "confusion_matrix"
MAX_CLASSES_WITH_NUMBERS = 40


def write_confusion(
    confusion: np.ndarray, class_names: Sequence[str], output_dir: str | os.PathLike
) -> None:
    """Write ``confusion_matrix.csv`` and ``confusion_matrix.png``.

    Args:
        confusion: int64 [K, K], numbers of pixels, rows = truth.
        class_names: K names.
        output_dir: made if it does not exist.
    """
    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    with open(output_dir / f"{NAME}.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["truth \\ prediction", *class_names])
        for name, row in zip(class_names, confusion.tolist(), strict=True):
            writer.writerow([name, *row])
    confusion_figure(confusion, class_names).savefig(output_dir / f"{NAME}.png", dpi=100)


def confusion_figure(confusion: np.ndarray, class_names: Sequence[str]) -> Figure:
    """The shares of each true class's pixels, in percent; a class that the truth lacks is grey.

    Arguments as above. Small matrices bear their numbers, rounded, where they are not 0.
    """
    totals = confusion.sum(axis=1, keepdims=True)
    percent = np.full(confusion.shape, np.nan)
    np.divide(100.0 * confusion, totals, out=percent, where=totals > 0)

    num_classes = len(class_names)
    with_numbers = num_classes <= MAX_CLASSES_WITH_NUMBERS
    side = max(3.0, (0.28 if with_numbers else 0.16) * num_classes)  # inches
    font_size = 8 if with_numbers else 6
    figure = Figure(figsize=(side + 2.5, side + 2), layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["Blues"].with_extremes(bad="lightgrey")
    picture = axes.imshow(percent, cmap=colours, vmin=0, vmax=100)
    axes.set_xticks(range(num_classes), class_names, rotation=90, fontsize=font_size)
    axes.set_yticks(range(num_classes), class_names, fontsize=font_size)
    axes.set_xlabel("prediction")
    axes.set_ylabel("truth")
    figure.colorbar(picture, ax=axes, shrink=0.6, label="percent of the true class")
    if with_numbers:
        for i, j in np.argwhere(np.nan_to_num(percent).round() > 0):
            colour = "white" if percent[i, j] > 60 else "black"
            text = f"{percent[i, j]:.0f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    return figure
