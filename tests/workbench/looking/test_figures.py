"""The pictures of an image, read back from the page's data URIs, and colours over images."""

import base64
import colorsys
import io

import matplotlib
import numpy as np
import pytest
from detectron2.data import Metadata
from PIL import Image

from ocr_panoptic.evaluation.panoptic_truth import TrueSegments
from ocr_panoptic.predict import overlays
from ocr_panoptic.workbench.looking import scene
from ocr_panoptic.workbench.looking.figures import image_figures, relation_of_a_pixel
from ocr_panoptic.workbench.looking.scene import Inspection, PanopticMap, SeenRegions

METADATA = Metadata(
    name="figures",
    thing_classes=["box", "ball"],
    thing_colors=[[90, 60, 30], [220, 0, 0]],
    stuff_classes=["things", "sky", "sand"],
    stuff_colors=[[80, 0, 120], [0, 120, 240], [230, 200, 140]],
    thing_dataset_id_to_contiguous_id={30: 0, 31: 1},
    stuff_dataset_id_to_contiguous_id={30: 0, 31: 0, 5: 1, 8: 2},
)
SKY = {"id": 12, "isthing": False, "category_id": 1}
BALL = {"id": 300, "isthing": True, "category_id": 1}


def decode(src: str) -> np.ndarray:
    assert src.startswith("data:image/jpeg;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(src.split(",")[1]))))


@pytest.fixture
def truth() -> PanopticMap:
    """Return a map of 40 x 20: sky on the left half, a ball on the next quarter, then void."""
    ids = np.repeat([12, 300, 0], [20, 10, 10])[None].repeat(20, axis=0)
    return PanopticMap(ids, [SKY, BALL])


@pytest.fixture
def inspection() -> Inspection:
    """Return an inspection: refined, all is sky; coarse, the right half is sand."""
    regions = np.full((3, 5, 10), 1 / 50, dtype=np.float32)
    regions[1] = 0.4 / 49
    regions[1, 0, 0] = 0.6
    relation = np.broadcast_to(np.array([0.7, 0.05, 0.25])[:, None, None], (3, 5, 10))
    cells = np.linspace(0, 20, 6), np.linspace(0, 40, 11)
    refined = np.full((20, 40), 1)
    return Inspection(
        image=np.full((20, 40, 3), 100, dtype=np.uint8),
        panoptic=PanopticMap(refined, [{**SKY, "id": 1}]),
        refined=refined,
        coarse=np.repeat([1, 2], [20, 20])[None].repeat(20, axis=0),
        regions=SeenRegions(regions, relation, cells),
    )


def test_the_pictures_show_the_classes(inspection, truth):
    """Captions and legend name the shown classes; the truth may have a data set's own labels."""
    segments = [{"id": 12, "category_id": 5}, {"id": 300, "category_id": 31}]
    found = scene.panoptic_truth(TrueSegments("a.png", truth.ids, segments), METADATA)
    assert found.info == truth.info
    figures = image_figures("a.jpg", inspection, truth, METADATA)
    assert {view.title: view.caption for view in figures.views} == {
        "Input": "40 × 20 pixels",
        "Truth": "1 thing and 1 stuff segments",
        "Panoptic prediction": "0 thing and 1 stuff segments",
        # 20 of 30 labelled columns are sky; void does not count
        "Coarse semantics": "66.7 % of the pixels correct",
        "Refined semantics": "66.7 % of the pixels correct",
    }
    colors = dict(figures.legend)  # classes in the truth or the prediction
    assert [*colors] == ["ball", "sky", "sand"] and colors["sky"] == "rgb(0,120,240)"
    plain = Inspection(inspection.image, inspection.panoptic, inspection.refined)
    plain = image_figures("a.jpg", plain, truth, METADATA)
    assert [v.title for v in plain.views][3:] == ["Semantics"] and plain.regions == []
    pictures = {view.title: decode(view.src) for view in figures.views}
    assert {p.shape for p in pictures.values()} == {(320, 640, 3)}  # enlarged 16 times
    grey = 0.28 * 100

    def at(title: str, column: int) -> np.ndarray:
        return pictures[title][160, 16 * column + 8].astype(float)

    for title, column, color in (
        ("Truth", 5, (0, 120, 240)),
        ("Truth", 25, (220, 0, 0)),
        ("Truth", 35, (128, 128, 128)),
        ("Panoptic prediction", 25, (0, 120, 240)),
        ("Coarse semantics", 35, (230, 200, 140)),
        ("Refined semantics", 35, (0, 120, 240)),
    ):
        expected = 0.72 * np.array(color) + grey
        np.testing.assert_allclose(at(title, column), expected, atol=4, err_msg=title)


def test_only_regions_of_present_classes_are_shown(inspection, truth):
    figures = image_figures("a.jpg", inspection, truth, METADATA)
    captions = {region.title: region.caption for region in figures.regions}
    assert captions == {"things": "max 0.02 (1×)", "sky": "max 0.6 (30×)"}
    sky = decode(figures.regions[1].src).astype(int).sum(axis=2)
    assert np.unravel_index(sky.argmax(), sky.shape) < (32, 32)  # the first of 5 x 10 cells
    without = image_figures("a.jpg", inspection, truth, METADATA, with_regions=False)
    assert without.regions == [] and without.relation is None and without.views == figures.views


def test_the_relation_of_a_pixel_of_the_rarest_class(inspection, truth):
    """The ball is rarer than the sky, and the mark lies on it."""
    found = image_figures("a.jpg", inspection, truth, METADATA).relation
    assert found.true_class == "things"
    names, colors, shares = zip(*found.shares, strict=True)
    assert names == ("things", "sand", "sky") and shares == pytest.approx((70, 25, 5))
    assert colors[1] == "rgb(230,200,140)"
    picture = decode(found.src).astype(int)
    changed = np.argwhere(np.abs(picture - 100).max(axis=2) > 60)
    row, column = changed.mean(axis=0) / 16  # in pixels of the image
    assert 20 <= column < 30 and 0 <= row < 20
    assert picture.max() > 240 and picture.min() < 15  # visible on any background


def test_the_mark_is_in_its_class(inspection):
    """The median of a ring lies outside it."""
    labels = np.zeros((9, 9), int)
    labels[2:7, 2:7] = 1
    labels[3:6, 3:6] = 0
    one_hot = np.stack([labels == 0, labels == 1]).astype(float)
    seen = inspection.regions._replace(relation=one_hot, cells=(np.arange(10.0), np.arange(10.0)))
    classes = [("sky", "rgb(1,2,3)"), ("ring", "rgb(4,5,6)")]
    image = np.zeros((90, 90, 3), np.uint8)
    found = relation_of_a_pixel(seen, labels, classes, image)
    assert found.shares[0] == ("ring", "rgb(4,5,6)", 100) and found.true_class == "ring"
    assert relation_of_a_pixel(seen, np.full((9, 9), -1), classes, image) is None


@pytest.mark.parametrize("size, expected", [((160, 160), (640, 640)), ((1024, 2048), (320, 640))])
def test_size_in_the_page(size, expected):
    nothing = PanopticMap(np.zeros(size, int), [])
    record = Inspection(np.zeros((*size, 3), np.uint8), nothing, np.zeros(size, int))
    figures = image_figures("a.jpg", record, nothing, METADATA)
    assert decode(figures.views[0].src).shape[:2] == expected
    assert figures.views[-1].caption == "no labels in this image"


def test_outlines_lie_on_one_side_of_a_border():
    ids = np.array([[1, 1, 2], [1, 1, 2], [3, 3, 3]])
    expected = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=bool)
    drawn = overlays.draw_segments(np.zeros((3, 3, 3), np.uint8), ids, {})
    np.testing.assert_array_equal((drawn == overlays.OUTLINE_COLOR).all(axis=2), expected)


def test_segments_cover_a_grey_image():
    image = np.zeros((2, 4, 3), dtype=np.uint8)
    image[..., 0] = 90  # the mean of the channels is 30
    ids = np.array([[7, 7, 0, 0], [7, 7, 0, 0]])
    drawn = overlays.draw_segments(image, ids, {7: (200, 100, 0)}, opacity=0.5)
    assert drawn[0, 0].tolist() == [115, 65, 15]  # (color + 30) / 2
    assert drawn[0, 1].tolist() == list(overlays.OUTLINE_COLOR)
    assert drawn[0, 3].tolist() == [round((v + 30) / 2) for v in overlays.VOID_COLOR]


def test_instances_of_a_class_differ_and_keep_its_hue():
    info = [
        {"id": 5, "isthing": True, "category_id": 0},
        {"id": 6, "isthing": True, "category_id": 0},
        {"id": 9, "isthing": False, "category_id": 1},
    ]
    colors = overlays.segment_colors(info, [(220, 50, 60)], [(0, 0, 0), (135, 190, 235)])
    assert colors[5] == (220, 50, 60)
    assert colors[9] == (135, 190, 235)
    hues = [colorsys.rgb_to_hls(*(c / 255 for c in colors[i]))[0] for i in (5, 6)]
    assert hues[0] == pytest.approx(hues[1], abs=0.01)
    assert len({overlays.instance_color((220, 50, 60), i) for i in range(7)}) == 7


def test_a_heat_map_is_logarithmic_over_three_decades():
    image = np.zeros((1, 4, 3), dtype=np.uint8)
    weights = np.array([[0.5, 0.5 * 10**-1.5, 0.5e-3, 0.0]])
    colormap = matplotlib.colormaps["inferno"]
    expected = [0.86 * 255 * np.array(colormap(v)[:3]) for v in (255, 128, 0, 0)]
    np.testing.assert_allclose(overlays.heat_map(weights, image)[0], expected, atol=1.5)
