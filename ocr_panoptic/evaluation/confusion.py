"""
The confusion matrix of semantic segmentation, metrics computed from it, and files that show it.

Shape letters: H, W size of the image; R runs of pixels; K classes. Rows of a confusion matrix are
true classes, columns predicted classes.
"""

import csv
import os
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from ocr_panoptic.errors import UserError
from ocr_panoptic.metrics import named

from .runs import check_sizes


def confusion_matrix(
    truth: np.ndarray,
    prediction: np.ndarray,
    num_classes: int,
    ignore_label: int,
    pixels: np.ndarray | None = None,
) -> np.ndarray:
    """
    Count the pixels of every pair of a true class and a predicted class.

    Args:
        truth: labels 0..K-1 or ``ignore_label``, unsigned integers [H, W], or [R] for runs.
        prediction: labels 0..K-1, integers of the same shape.
        num_classes: number of classes, K.
        ignore_label: true label of the pixels to leave out, at least 0.
        pixels: number of pixels of each run, integers [R]; None counts each label once.

    Returns:
        int64 [K, K], rows = truth, columns = prediction.
    """
    check_sizes(truth, prediction)
    # Every true label gets a column, so that the same histogram reveals invalid labels.
    width = max(int(truth.max(initial=0)), ignore_label, num_classes - 1) + 1
    pair = np.multiply(prediction, width, dtype=np.int64)
    pair += truth
    joint = np.bincount(pair.reshape(-1), weights=pixels, minlength=num_classes * width)
    joint = joint.astype(np.int64, copy=False)  # float64 with weights, exact for these integers
    if joint.size > num_classes * width:
        raise UserError(
            f"the prediction has the label {int(prediction.max())}, expected 0..{num_classes - 1}. "
            "The model and the data must have the same classes"
        )
    joint = joint.reshape(num_classes, width)
    joint[:, ignore_label] = 0
    foreign = joint.sum(axis=0)[num_classes:]
    if foreign.any():
        labels = np.flatnonzero(foreign)
        listed = ", ".join(f"{num_classes + i} ({foreign[i]} pixels)" for i in labels)
        raise UserError(
            f"the ground truth has the labels {listed}; expected 0..{num_classes - 1}, or "
            f"{ignore_label} for ignored pixels. Correct the labels in the file"
        )
    return np.ascontiguousarray(joint[:, :num_classes].T)


def semantic_scores(
    confusion: np.ndarray, class_names: Sequence[str], absent: Collection[str] = ()
) -> dict[str, float]:
    """
    Return the scores of a confusion matrix in percent, under Detectron2's names.

    Let n_ij pixels of class i be predicted as class j, t_i = sum_j n_ij, and p_j = sum_i n_ij
    (Long et al., "Fully Convolutional Networks", CVPR 2015, section 5):

    - "IoU" of a class: n_ii / (t_i + p_i - n_ii); NaN if the class does not occur in the truth.
    - "ACC" of a class: n_ii / t_i; NaN if the class does not occur in the truth.
    - "mIoU", "mACC": means of IoU and ACC over the classes that occur in the truth.
    - "mIoU_truth_or_predicted": mean of IoU over the classes that occur in the truth or in the
      prediction; a class that is only predicted counts as 0. Other toolboxes report this metric.
      It equals "mIoU" if every class occurs in the truth.
    - "fwIoU": sum_i t_i IoU_i / sum_i t_i.   "pACC": sum_i n_ii / sum_i t_i.

    "mIoU", "mACC" and "mIoU_truth_or_predicted" are NaN if they would average fewer than two
    classes. All scores of an empty matrix are NaN. The classes ``absent``, which the data lack, are
    not averaged even if they are predicted.
    """
    tp = confusion.diagonal().astype(np.float64)
    truth = confusion.sum(axis=1).astype(np.float64)
    union = truth + confusion.sum(axis=0) - tp
    total = truth.sum()
    occurs = (truth > 0) | (total == 0)
    is_averaged = (union > 0) & [name not in absent for name in class_names]
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
        iou, acc = np.where(occurs, tp / union, np.nan), tp / truth
        overall = {
            "mIoU": np.sum(iou[occurs]) / count_several(occurs),
            "mIoU_truth_or_predicted": np.sum(iou[occurs]) / count_several(is_averaged),
            "fwIoU": np.sum(iou[occurs] * (truth / total)[occurs]),
            "mACC": np.sum(acc[occurs]) / count_several(occurs),
            "pACC": np.sum(tp) / total,
        }
    overall = {name: float(100 * value) for name, value in overall.items()}
    for metric, values in (("IoU", iou), ("ACC", acc)):
        overall |= named(metric, class_names, (100 * values).tolist())
    return overall


def count_several(classes: np.ndarray) -> np.ndarray:
    """Count the True values along the last axis, float64; NaN if there are fewer than two."""
    number = np.sum(classes, axis=-1, dtype=np.float64)
    return np.where(number > 1, number, np.nan)


def category_scores(confusion: np.ndarray, class_categories: Sequence[str]) -> dict[str, float]:
    """
    Return the IoU of each category (group of classes) in percent, as cityscapesscripts does.

    The "IoU_category" of a category is the IoU after its classes are merged into one class; NaN if
    the category occurs neither in the truth nor in the prediction. "mIoU_categories" is the mean
    over the categories that occur.

    Args:
        confusion: confusion matrix, integers [K, K], rows = truth.
        class_categories: name of the category of each of the K classes.
    """
    categories = list(dict.fromkeys(class_categories))
    member = np.array([[c == category for c in class_categories] for category in categories])
    merged = member.astype(np.int64) @ confusion @ member.T
    tp = merged.diagonal()
    union = merged.sum(axis=1) + merged.sum(axis=0) - tp
    iou = np.divide(100 * tp, union, out=np.full(len(tp), np.nan), where=union > 0)
    occurring = iou[union > 0]
    mean = float(occurring.mean()) if len(occurring) else float("nan")
    return {"mIoU_categories": mean, **named("IoU_category", categories, iou.tolist())}


def write_confusion(
    confusion: np.ndarray, class_names: Sequence[str], output_dir: str | os.PathLike
) -> None:
    """Write ``confusion_matrix.csv`` and ``confusion_matrix.png`` to the folder ``output_dir``."""
    path = Path(output_dir) / "confusion_matrix.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["truth \\ prediction", *class_names])
        writer.writerows([name, *row] for name, row in zip(class_names, confusion.tolist()))
    confusion_figure(confusion, class_names).savefig(path.with_suffix(".png"), dpi=100)


def confusion_figure(confusion: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Draw a confusion matrix, each row in percent of its true pixels; an empty row is grey."""
    totals = confusion.sum(axis=1, keepdims=True)
    percent = np.full(confusion.shape, np.nan)
    np.divide(100.0 * confusion, totals, out=percent, where=totals > 0)

    num_classes = len(class_names)
    is_small = num_classes <= 40
    side = max(3.0, (0.28 if is_small else 0.16) * num_classes)  # inches
    figure = Figure(figsize=(side + 2.5, side + 2), layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["Blues"].with_extremes(bad="lightgrey")
    picture = axes.imshow(percent, cmap=colours, vmin=0, vmax=100)
    for axis, label in ((axes.xaxis, "prediction"), (axes.yaxis, "ground truth")):
        axis.set_ticks(range(num_classes), class_names, fontsize=8 if is_small else 6)
        axis.set_label_text(label)
    axes.tick_params("x", rotation=90)
    figure.colorbar(picture, ax=axes, shrink=0.6, label="% of the pixels of the true class")
    if is_small:
        for i, j in np.argwhere(np.nan_to_num(percent).round() > 0):
            colour = "white" if percent[i, j] > 60 else "black"
            text = f"{percent[i, j]:.0f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    return figure
