"""The reliability diagram as inline SVG; colours come from the page's style sheet."""

from collections.abc import Mapping, Sequence

from jinja2 import Environment
from markupsafe import Markup

SIDE, LEFT, BOTTOM, MARGIN = 300, 40, 40, 12  # of the plot, and free around it

_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """<svg class="reliability" viewBox="0 0 {{ w }} {{ h }}" role="img" aria-label="{{ name }}">
{% for tick in (0, 25, 50, 75, 100) %}
<line class="grid" x1="{{ x(0) }}" x2="{{ x(1) }}" y1="{{ y(tick / 100) }}" y2="{{ y(tick / 100) }}"/>
<text class="tick" x="{{ x(0) - 6 }}" y="{{ y(tick / 100) + 4 }}" text-anchor="end">{{ tick }}</text>
<text class="tick" x="{{ x(tick / 100) }}" y="{{ y(0) + 16 }}" text-anchor="middle">{{ tick }}</text>
{% endfor %}
{% for bin in bins %}
<rect class="bin" x="{{ x(bin.from) }}" width="{{ x(bin.to) - x(bin.from) }}" y="{{ y(bin.accuracy) }}" height="{{ y(0) - y(bin.accuracy) }}" style="--share:{{ bin.share }}"><title>{{ bin.text }}</title></rect>
<circle cx="{{ x(bin.confidence) }}" cy="{{ y(bin.accuracy) }}" r="3"/>
{% endfor %}
<line class="ideal" x1="{{ x(0) }}" y1="{{ y(0) }}" x2="{{ x(1) }}" y2="{{ y(1) }}"/>
<text class="tick" x="{{ x(0.5) }}" y="{{ h - 6 }}" text-anchor="middle">confidence, %</text>
<text class="tick" transform="translate(11 {{ y(0.5) }}) rotate(-90)" text-anchor="middle">right pixels, %</text>
</svg>"""  # noqa: E501
)


def reliability_svg(rows: Sequence[Mapping[str, str]]) -> Markup:
    """
    Args:
        rows: of an evaluation's ``calibration.csv``: "from", "to", "pixels", "confidence" and
            "accuracy", in 0..1. The more of the pixels are in a bin, the fuller its colour.

    Returns:
        the diagram, "" without bins.
    """
    bins = [{key: float(value) for key, value in row.items()} for row in rows]
    total = sum(b["pixels"] for b in bins)
    if not total:
        return Markup("")
    drawn = [
        {
            **b,
            "share": round(b["pixels"] / max(other["pixels"] for other in bins), 3),
            "text": f"{100 * b['pixels'] / total:.1f} % of the pixels: mean confidence "
            f"{100 * b['confidence']:.1f} %, right {100 * b['accuracy']:.1f} %",
        }
        for b in bins
    ]
    return Markup(
        _TEMPLATE.render(
            bins=drawn,
            w=LEFT + SIDE + MARGIN,
            h=MARGIN + SIDE + BOTTOM,
            x=lambda value: round(LEFT + SIDE * value, 2),
            y=lambda value: round(MARGIN + SIDE * (1 - value), 2),
            name="Reliability diagram. " + "; ".join(b["text"] for b in drawn),
        )
    )
