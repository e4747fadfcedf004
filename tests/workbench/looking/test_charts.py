"""Charts: the values that they show, and what stands of them in the page."""

from xml.etree import ElementTree

import pytest

from ocr_panoptic.workbench.looking.charts import (
    inline_svg,
    loss_curves,
    loss_figure,
)


def log(*keys: str) -> list[dict[str, float]]:
    return [{"iteration": i, **{k: 2.0 / (i + 1) for k in keys}} for i in (19, 39, 59)]


def test_curves_of_the_losses():
    both = log("total_loss", "loss_sem_seg", "loss_sem_seg_coarse")
    both[1]["loss_sem_seg"] = float("nan")
    both[2]["loss_sem_seg_coarse"] = 0.0
    both.append({"iteration": 60, "panoptic_seg/PQ": 50.0})
    both.append({"iteration": 79, "loss_sem_seg": float("inf"), "loss_mask": -1.0})
    assert loss_curves(both) == {
        "Total loss": {"total": [(20, 2 / 20), (40, 2 / 40), (60, 2 / 60)]},
        "Semantic segmentation": {
            "refined": [(20, 2 / 20), (60, 2 / 60)],
            "coarse": [(20, 2 / 20), (40, 2 / 40)],
        },
    }
    assert list(loss_curves(log("loss_sem_seg"))["Semantic segmentation"]) == ["semantic"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "values, ticks",
    [((4, 0.3), ["0.5", "1", "2"]), ((400, 0.3), ["1", "10", "100"]), ((1, 1), ["1"])],
)
def test_losses_on_a_logarithmic_axis(values, ticks):
    curve = list(zip((20, 100), values, strict=True))
    figure = loss_figure({"a": curve})
    (axes,) = figure.axes
    (line,) = axes.lines
    assert [tuple(point) for point in line.get_xydata()] == curve
    assert axes.get_yscale() == "log" and axes.get_xlim() == (0, 100)
    low, high = axes.get_ylim()
    assert low <= min(values) and max(values) <= high
    figure.canvas.draw()
    shown = [(t.get_text(), t.get_position()[1]) for t in axes.get_yticklabels()]
    assert all(float(text) == pytest.approx(value) for text, value in shown)
    assert {*ticks} <= {text for text, value in shown if low <= value <= high}


def test_a_chart_in_the_page():
    """A chart has the colours of the page, and no id that another chart of the page has, too."""
    figure = loss_figure({"a": [(1, 2.0), (2, 1.0)], "b": [(1, 1.0), (2, 2.0)]})
    text = str(inline_svg(figure, "chart", 'a & <b>, "c"'))
    svg = ElementTree.fromstring(text)
    assert (svg.get("class"), svg.get("aria-label")) == ("chart", 'a & <b>, "c"')
    assert {"iterations", "1", "2"} <= {element.text for element in svg.iter("text")}
    for variable in ("--c0", "--c1", "--muted", "--line"):
        assert f"var({variable})" in text
    assert not any(word in text for word in ("http", "url(", " id=", "<style", "font-family"))
