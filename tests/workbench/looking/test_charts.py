"""The curves of the losses."""

import pytest

from ocr_panoptic.workbench.looking.charts import loss_curves, loss_figure


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


@pytest.mark.parametrize("values", [(4, 0.3), (400, 0.3), (1, 1)])
def test_losses_on_a_logarithmic_axis(values):
    curve = list(zip((20, 100), values, strict=True))
    (axes,) = loss_figure({"a": curve}).axes
    (line,) = axes.lines
    assert [tuple(point) for point in line.get_xydata()] == curve
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_legend().texts] == [f"a {values[-1]:g}"]
