"""Colours over images, compared with pixels by hand; curves; the worst images."""

import colorsys

import matplotlib
import numpy as np
import pytest

from ocr_panoptic.visualization.overlays import (
    OUTLINE_COLOR,
    VOID_COLOR,
    draw_segments,
    heat_map,
    instance_color,
    segment_colors,
)
from ocr_panoptic.workbench.looking.report import loss_curves, loss_figure, worst_images


def test_outlines_lie_on_one_side_of_a_border():
    ids = np.array([[1, 1, 2], [1, 1, 2], [3, 3, 3]])
    expected = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=bool)
    drawn = draw_segments(np.zeros((3, 3, 3), np.uint8), ids, {})
    np.testing.assert_array_equal((drawn == OUTLINE_COLOR).all(axis=2), expected)


def test_segments_cover_a_grey_image():
    image = np.zeros((2, 4, 3), dtype=np.uint8)
    image[..., 0] = 90  # the mean of the channels is 30
    ids = np.array([[7, 7, 0, 0], [7, 7, 0, 0]])
    drawn = draw_segments(image, ids, {7: (200, 100, 0)}, opacity=0.5)
    assert drawn[0, 0].tolist() == [115, 65, 15]  # (color + 30) / 2
    assert drawn[0, 1].tolist() == list(OUTLINE_COLOR)
    assert drawn[0, 3].tolist() == [round((v + 30) / 2) for v in VOID_COLOR]


def test_instances_of_a_class_differ_and_keep_its_hue():
    info = [
        {"id": 5, "isthing": True, "category_id": 0},
        {"id": 6, "isthing": True, "category_id": 0},
        {"id": 9, "isthing": False, "category_id": 1},
    ]
    colors = segment_colors(info, [(220, 50, 60)], [(0, 0, 0), (135, 190, 235)])
    assert colors[5] == (220, 50, 60)
    assert colors[9] == (135, 190, 235)
    hues = [colorsys.rgb_to_hls(*(c / 255 for c in colors[i]))[0] for i in (5, 6)]
    assert hues[0] == pytest.approx(hues[1], abs=0.01)
    assert len({instance_color((220, 50, 60), i) for i in range(7)}) == 7


def test_a_heat_map_is_logarithmic_over_three_decades():
    image = np.zeros((1, 4, 3), dtype=np.uint8)
    weights = np.array([[0.5, 0.5 * 10**-1.5, 0.5e-3, 0.0]])
    colormap = matplotlib.colormaps["inferno"]
    expected = [0.86 * 255 * np.array(colormap(v)[:3]) for v in (255, 128, 0, 0)]
    np.testing.assert_allclose(heat_map(weights, image)[0], expected, atol=1.5)


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
            "final": [(20, 2 / 20), (60, 2 / 60)],
            "coarse": [(20, 2 / 20), (40, 2 / 40)],
        },
    }


@pytest.mark.parametrize("values", [(4, 0.3), (400, 0.3), (1, 1)])
def test_losses_on_a_logarithmic_axis(values):
    curve = list(zip((20, 100), values, strict=True))
    (axes,) = loss_figure({"a": curve}).axes
    (line,) = axes.lines
    assert [tuple(point) for point in line.get_xydata()] == curve
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_legend().texts] == [f"a {values[-1]:g}"]


@pytest.mark.parametrize("number, expected", [(0, ""), (1, "e"), (3, "ebd"), (9, "ebda")])
def test_the_worst_images(number, expected):
    """Scores are compared as numbers; images without a score are left out."""
    rows = [
        {"file_name": f"{name}.jpg", "misses": "1.5"} | ({"PQ": score} if score else {})
        for name, score in zip("abcde", ("100.0", "9.5", "", "30", "8.5"), strict=True)
    ]
    found = worst_images(rows, "PQ", number)
    assert "".join(file_name[0] for file_name, *_ in found) == expected
    assert found[:1] == [("e.jpg", 8.5, {"misses": 1.5})][:number]
