"""Loss curves of a training run."""

import base64
import io
import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

# chart -> (key of the training log, label)
LOSSES = {
    "Total loss": (("total_loss", "total"),),
    "Semantic segmentation": (("loss_sem_seg", "refined"), ("loss_sem_seg_coarse", "coarse")),
    "Instances": (
        ("loss_cls", "box class"),
        ("loss_box_reg", "box regression"),
        ("loss_mask", "mask"),
        ("loss_rpn_cls", "RPN class"),
        ("loss_rpn_loc", "RPN regression"),
    ),
}

Curve = list[tuple[float, float]]  # iterations done, loss


def loss_curves(log: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Curve]]:
    """
    Return the non-empty charts: chart -> label -> curve.

    Values that a logarithmic axis cannot show are left out: NaN, infinity, and the 0 of a batch
    without instances. When a semantic head has a single loss, its label is "semantic".

    Args:
        log: rows of :func:`ocr_panoptic.formats.run_folder.read_training_log`.
    """
    charts = {}
    for title, losses in LOSSES.items():
        curves = {
            label: [(r["iteration"] + 1, r[k]) for r in log if 0 < r.get(k, math.nan) < math.inf]
            for k, label in losses
        }
        curves = {label: curve for label, curve in curves.items() if curve}
        if title == "Semantic segmentation" and len(curves) == 1:
            curves = dict(zip(["semantic"], curves.values()))
        if curves:
            charts[title] = curves
    return charts


def loss_figure(curves: Mapping[str, Curve]) -> Figure:
    """Draw losses over the iterations on a logarithmic axis, with the last values in the legend."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        axes.plot(*zip(*curve), label=f"{label} {curve[-1][1]:.3g}")
    axes.set(xlabel="iterations", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure


def png_source(content: Figure | bytes) -> str:
    """Return a figure, or the bytes of a PNG file, as a data URI."""
    if isinstance(content, Figure):
        buffer = io.BytesIO()
        content.savefig(buffer, format="png", dpi=110)
        content = buffer.getvalue()
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
