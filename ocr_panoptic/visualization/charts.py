"""
Line charts as inline SVG. Colours come from the page's style sheet (classes ``series-0``, ...,
``axis``, ``grid``, ``tick``), so that a chart follows the page's light or dark scheme.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 12, 40  # free around the plot, in the same units
MAX_MARKERS = 60  # points with a tooltip, for each curve


@dataclass(frozen=True)
class Series:
    """
    A curve.

    Attributes:
        points: (x, y), at least one; x rising and not negative, y positive and finite.
    """

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LineChart:
    """
    Curves over one pair of axes, x from 0, y logarithmic: losses fall by orders of magnitude, and
    what is worth comparing is at their end.
    """

    title: str
    series: Sequence[Series]
    x_label: str

    def svg(self) -> Markup:
        scale = _Scale([point for s in self.series for point in s.points])
        summary = "; ".join(
            f"{s.label} from {s.points[0][1]:.3g} to {s.points[-1][1]:.3g}" for s in self.series
        )
        return Markup(
            _TEMPLATE.render(
                name=f"{self.title}: {summary}",
                box={"w": WIDTH, "h": HEIGHT, "l": LEFT, "r": WIDTH - RIGHT, "b": HEIGHT - BOTTOM},
                x_ticks=[(f"{t:g}", scale.x(t)) for t in scale.x_ticks],
                y_ticks=[(f"{t:g}", scale.y(t)) for t in scale.y_ticks],
                x_label=self.x_label,
                curves=[self._curve(s, scale) for s in self.series],
            )
        )

    def _curve(self, series: Series, scale: "_Scale") -> dict:
        step = len(series.points) // MAX_MARKERS + 1
        return {
            "line": " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y in series.points),
            "markers": [
                (scale.x(x), scale.y(y), f"{series.label}, {self.x_label} {x:g}: {y:.4g}")
                for x, y in series.points[::step]
            ],
        }


class _Scale:
    """A scale from values to the SVG's units, with round ticks."""

    def __init__(self, points: Sequence[tuple[float, float]]):
        xs, ys = zip(*points, strict=True)
        self._x_max = max(xs) or 1.0  # the last point touches the right edge
        ticks = MaxNLocator(5, integer=True).tick_values(0, self._x_max)
        self.x_ticks = [float(t) for t in ticks if 0 <= t <= self._x_max]
        self.y_ticks = _log_ticks(min(ys), max(ys))

    def x(self, value: float) -> float:
        return round(LEFT + value / self._x_max * (WIDTH - LEFT - RIGHT), 2)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        share = math.log(value / low) / math.log(high / low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 2)


def _log_ticks(low: float, high: float) -> list[float]:
    """Ticks around [low, high], at least two: 1, 2, 5, 10, ... or, for a wide range, 1, 10, ..."""
    mantissas = (1, 2, 5) if high / low <= 100 else (1,)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [float(f"{m}e{e}") for e in exponents for m in mantissas]
    first = max(i for i, tick in enumerate(ticks) if tick <= low)
    last = min(i for i, tick in enumerate(ticks) if tick >= high)
    return ticks[first : max(last, first + 1) + 1]


_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<svg class="chart" viewBox="0 0 {{ box.w }} {{ box.h }}" role="img" aria-label="{{ name }}">
{% for text, y in y_ticks %}
<line class="grid" x1="{{ box.l }}" x2="{{ box.r }}" y1="{{ y }}" y2="{{ y }}"/>
<text class="tick" x="{{ box.l - 8 }}" y="{{ y + 4 }}" text-anchor="end">{{ text }}</text>
{% endfor %}
{% for text, x in x_ticks %}
<text class="tick" x="{{ x }}" y="{{ box.b + 18 }}" text-anchor="middle">{{ text }}</text>
{% endfor %}
<line class="axis" x1="{{ box.l }}" x2="{{ box.r }}" y1="{{ box.b }}" y2="{{ box.b }}"/>
<text class="tick" x="{{ box.r }}" y="{{ box.h - 4 }}" text-anchor="end">{{ x_label }}</text>
{% for curve in curves %}
<g class="series-{{ loop.index0 }}">
<polyline points="{{ curve.line }}"/>
{% for x, y, text in curve.markers %}
<circle cx="{{ x }}" cy="{{ y }}" r="6"><title>{{ text }}</title></circle>
{% endfor %}
</g>
{% endfor %}
</svg>""")
