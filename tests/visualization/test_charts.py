"""Line charts: what stands where, against coordinates worked out by hand."""

from xml.etree import ElementTree

import pytest

from ocr_panoptic.visualization.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    LineChart,
    Series,
)


def parse(chart: LineChart) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart.svg()))


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, p.split(","))) for p in line.get("points").split()]


def test_points_stand_where_their_values_say():
    svg = parse(
        LineChart(
            "Losses",
            [Series("a", [(0, 10), (50, 1), (100, 0.1)]), Series("b", [(25, 10**0.5)])],
            x_label="iterations",
        )
    )
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    middle = (left + right) / 2, (top + bottom) / 2
    first, second = svg.iter("polyline")
    assert points(first) == [(left, top), middle, (right, bottom)]
    assert points(second) == [
        pytest.approx(((left + middle[0]) / 2, (top + middle[1]) / 2), abs=0.01)
    ]
    titles = [title.text for title in svg.iter("title")]
    assert titles[:3] == ["a, iterations 0: 10", "a, iterations 50: 1", "a, iterations 100: 0.1"]


def test_ticks_stand_at_their_values():
    svg = parse(LineChart("Losses", [Series("a", [(0, 4), (100, 0.3)])], x_label="iterations"))
    y_of = {
        t.text: float(t.get("y")) - 4 for t in svg.iter("text") if t.get("text-anchor") == "end"
    }
    assert list(y_of) == ["0.2", "0.5", "1", "2", "5", "iterations"]
    assert y_of["0.2"] == HEIGHT - BOTTOM and y_of["5"] == TOP
    # equal ratios, equal distances
    assert y_of["1"] - y_of["2"] == pytest.approx(y_of["0.5"] - y_of["1"], abs=0.02)
    # a wide range has powers of ten alone
    svg = parse(LineChart("Losses", [Series("a", [(0, 400), (1, 0.3)])], x_label="x"))
    texts = [t.text for t in svg.iter("text")]
    assert texts[:5] == ["0.1", "1", "10", "100", "1000"]


def test_a_constant_curve_has_an_axis():
    svg = parse(LineChart("Losses", [Series("a", [(0, 1), (10, 1)])], x_label="x"))
    assert points(next(svg.iter("polyline"))) == [
        (LEFT, HEIGHT - BOTTOM),
        (WIDTH - RIGHT, HEIGHT - BOTTOM),
    ]


def test_labels_are_escaped():
    svg = parse(LineChart('<"T">', [Series("a & <b>", [(0, 1), (1, 2)])], x_label="<x>"))
    assert svg.get("aria-label") == '<"T">: a & <b> from 1 to 2'
    assert next(svg.iter("title")).text == "a & <b>, <x> 0: 1"
