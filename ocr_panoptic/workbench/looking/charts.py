"""Charts as inline SVG in the colours of the page, light or dark."""

import io
import math
import re
from collections.abc import Mapping, Sequence

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

# What matplotlib draws in these becomes a colour of the page's style sheet.
INK, MUTED, LINE = "#010000", "#020000", "#030000"
SERIES = ("#040000", "#050000", "#060000", "#070000", "#080000")
VARIABLES = dict(zip((INK, MUTED, LINE), ("--ink", "--muted", "--line")))
VARIABLES |= {color: f"--c{number}" for number, color in enumerate(SERIES)}

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
    Args:
        log: of :func:`ocr_panoptic.formats.run_folder.read_training_log`.

    Returns:
        chart -> label -> curve, of those with a point. Values that a logarithmic axis cannot show
        are left out (NaN, infinity, and zero: a batch without any instance); a loss that is the
        semantic head's only one is not called "refined".
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
    """Draw losses over the iterations on a logarithmic axis: they fall by orders of magnitude, and
    what is worth comparing is at their end."""
    figure = Figure(figsize=(4.8, 2.6), layout="constrained")
    axes = figure.subplots()
    for color, curve in zip(SERIES, curves.values()):
        axes.plot(*zip(*curve, strict=True), color=color, lw=2, clip_on=False)
    axes.set_yscale("log")
    values = [value for curve in curves.values() for _, value in curve]
    is_narrow = max(values) <= 100 * min(values)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_narrow else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlim(0, max(curve[-1][0] for curve in curves.values()))
    axes.set_xlabel("iterations", loc="right")
    axes.grid(axis="y")
    return figure


def inline_svg(figure: Figure, css_class: str, name: str) -> Markup:
    """Return a figure as an element of a page; ``name`` says what it shows to whoever cannot see
    it."""
    for axes in figure.axes:
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(MUTED)
        axes.tick_params(left=False, bottom=False, labelcolor=MUTED, grid_color=LINE)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set_color(MUTED)
        for part in axes.findobj():  # nothing is clipped, which would take names in the page
            part.set_clip_on(False)
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # What is of a file of its own, and ids that another chart of the page has, too.
    svg = re.sub(r"<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:xmlns(?::\w+)?="[^"]*"|id="[\w.]+_\d+")', "", svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"font-family: [^;]*; ", "", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    attributes = f'class="{css_class}" role="img" aria-label="{escape(name)}"'
    return Markup(svg.replace("<svg", f"<svg {attributes}", 1))
