"""The fingerprint's facts agree with drawn data whose facts are known; strange data are refused."""

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data import data_check
from ocr_panoptic.data.data_file import read_data_files
from ocr_panoptic.data.sources import read_data_sets
from ocr_panoptic.errors import UserError
from ocr_panoptic.workbench.planning import fingerprint as module
from ocr_panoptic.workbench.planning.fingerprint import fingerprint, has_top
from support.drawn_data import cells

pytestmark = pytest.mark.usefixtures("clean_catalog")


def test_facts_of_cells(panoptic):
    """Cells of 6x6 pixels in squares of 10, on images of 40x60 and 40x80 pixels."""
    images = [cells(40, 60, 6, 10), cells(40, 80, 6, 10)]
    ids, _ = images[1]
    ids[:3] = 0  # void; the cells of the first row keep three rows
    found = fingerprint([panoptic(images)], workers=1)
    assert (found.kind, found.train, found.val, found.channels) == ("panoptic", 2, 2, 3)
    assert found.short == (40, 40, 40) and found.aspect == 2
    assert found.objects == (28, 32, 32)  # 24 and 32
    np.testing.assert_allclose(found.sides[1:], 6 / 40)
    assert found.sides[0] == pytest.approx((3 * 6) ** 0.5 / 40, abs=1e-5)
    assert found.void == pytest.approx(240 / 5600) and found.crowds == 0
    cell, ground = found.classes
    pixels = 24 * 36 + 24 * 36 + 8 * 18
    assert cell.pixels == pytest.approx(pixels / 5600) and cell.images == 1
    assert ground.pixels == pytest.approx((5600 - 240 - pixels) / 5600)
    # Edges inside the image: 24 cells of the first image, 24 and 8 of the second, without those
    # at the left and top borders.
    edges = (24 * 24 - 6 * 6 - 4 * 6) + (24 * 24 + 8 * 18 - 3 * 6 - 3)
    assert cell.width == pytest.approx(2 * pixels / edges / 40, rel=1e-4)


def test_facts_of_a_strip(semantic):
    """A strip of 4 pixels in width, at the top of one image and at the bottom of the other."""
    top = np.zeros((50, 100), np.uint8)
    top[10:14] = 1
    found = fingerprint([semantic([top, top[::-1]])], workers=1)
    a, b = found.classes
    assert b.width == pytest.approx(4 / 50) and (b.images, b.pixels) == (1, 0.08)
    assert a.width == pytest.approx(2 * 46 / 2 / 50)
    assert not found.sides and found.objects == (0, 0, 0) and found.thinnest() == b
    whole = np.stack([np.random.default_rng(i).integers(0, 256, (50, 100, 3)) for i in (0, 1)])
    np.testing.assert_allclose(found.mean, whole.mean((0, 1, 2)), atol=1e-3)
    np.testing.assert_allclose(found.std, whole.std((0, 1, 2)), atol=1e-3)


def test_what_tells_a_fixed_orientation():
    rng = np.random.default_rng(0)
    rows, spreads, tilts = (
        rng.uniform(-0.3, 0.3, (200, 3)).tolist(),
        rng.normal(0, 0.1, (200, 3)).tolist(),
        rng.normal(0, 0.3, 200).tolist(),
    )
    assert not has_top(rows, spreads, tilts)
    unknown = [[None] * 3] * 200
    assert has_top(unknown, unknown, tilts)
    few = [[None, *row[1:]] for row in rows[:7]]
    assert has_top(few, few, tilts[:7])  # too few to tell
    seldom = [[row[0] if i % 3 == k else None for k in range(3)] for i, row in enumerate(rows)]
    assert has_top(seldom[:20], seldom[:20], tilts[:20]) and not has_top(seldom, seldom, tilts)
    sky = [[-0.3 + row[0] / 10, row[1], None] for row in rows]
    assert has_top(sky, unknown, tilts)
    assert has_top(rows, [[-0.1 + row[0] / 10, row[1], None] for row in spreads], tilts)
    assert has_top(rows, spreads, [0.1 + tilt / 3 for tilt in tilts])
    assert not has_top(rows, spreads, [0.015 + tilt / 100 for tilt in tilts])  # below 2 %


def drawn(height: int, width: int, of_class: tuple[int, int], places) -> list[np.ndarray]:
    """Return label maps with a box of class 1 at each place, mirrored, too."""
    maps = []
    for row, column in places:
        truth = np.zeros((height, width), np.uint8)
        truth[row : row + of_class[0], column : column + of_class[1]] = 1
        maps += [truth, np.ascontiguousarray(truth[::-1])]
    return maps


def test_a_class_that_reaches_farther_in_width(semantic):
    """Deviations of n equally spaced lines: sqrt((n^2 - 1) / 12)."""
    file = semantic(drawn(40, 40, (4, 40), [(row, 0) for row in (2, 9, 15, 17)]))
    assert fingerprint([file], workers=1).has_top
    sets = read_data_sets(read_data_files([file]))
    facts = module.facts_of_split(sets["drawn_train"].source, workers=1)
    expected = ((15 / 12) ** 0.5 - (1599 / 12) ** 0.5) / 40
    np.testing.assert_allclose([spread for _, spread in facts["spread"]], expected)
    np.testing.assert_allclose([row for _, row in facts["row"]][:2], (-16 / 40, 16 / 40))
    assert np.abs(facts["tilt"]).max() < 0.05


@pytest.mark.parametrize("number", [1, 10])
@pytest.mark.parametrize("size", [(48, 64), (64, 48), (30, 90)])
def test_discs_in_long_images_have_no_orientation(semantic, size, number):
    """A long window around many discs shows more of them along its longer side."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[: size[0], : size[1]]
    middle = np.subtract(size, 1) / 2
    around = middle + 5 if number > 1 else 3
    least, most = middle - around, middle + around
    maps = []
    for _ in range(150):
        truth = np.zeros(size, np.uint8)
        for row, column in rng.uniform(least, most, (number, 2)):
            truth[(rows - row) ** 2 + (columns - column) ** 2 < 25] = 1
        maps.append(truth)
    assert not fingerprint([semantic(maps)], workers=1).has_top


def test_a_fourth_channel_is_no_brightness(semantic, tmp_path):
    file = semantic([np.eye(8, dtype=np.uint8)], channels=4)
    photo = np.full((8, 8, 4), 60, np.uint8)
    photo[:4, :, :3] += 20  # of 70 on average
    photo[:4, :, 3] = 200
    Image.fromarray(photo).save(tmp_path / "images/0.png")
    assert module.facts_of_image(*_source_of(file))["tilt"] == pytest.approx(20 / 70)


def test_a_second_look_reads_no_image(semantic, monkeypatch):
    file = semantic([np.eye(8, dtype=np.uint8)] * 3)
    before = fingerprint([file], workers=1)
    for room in (data_check, module):
        monkeypatch.setattr(room, "imap_with_progress", None)
    assert fingerprint([file], workers=1) == before


def test_large_images_are_thinned(semantic, monkeypatch):
    truth = np.zeros((400, 600), np.uint8)
    truth[:, 200:] = 1
    file = semantic([truth])
    monkeypatch.setattr(module, "PIXELS", 400 * 600 // 25)
    facts = module.facts_of_image(*_source_of(file))
    assert facts["area"] == pytest.approx([0.5, 1.0], rel=0.01)
    assert facts["boundary"] == pytest.approx([1, 1]) and facts["size"] == (400, 600)


def _source_of(file):
    source = read_data_sets(read_data_files([file]))["drawn_train"].source
    return source, [*source.classes()], source.images()[0]


def test_refusals(semantic, panoptic, tmp_path):
    truth = np.full((8, 8), 255, np.uint8)
    with pytest.raises(ValueError, match="all pixels are ignored"):
        fingerprint([semantic([truth])], workers=1)
    with pytest.raises(ValueError, match="the only class"):
        fingerprint([semantic([truth * 0], classes=["a"])], workers=1)
    with pytest.raises(UserError, match="no split called train.*drawn_val"):
        fingerprint([semantic([np.eye(8, dtype=np.uint8)], splits=("val",))], workers=1)
    for path in tmp_path.glob("images/*"):
        path.unlink()
    with pytest.raises(ValueError, match="no files that end in"):
        fingerprint([semantic([], splits=("train",))], workers=1)
    with pytest.raises(ValueError, match="void"):
        fingerprint([panoptic([(np.zeros((8, 8), int), {})])], workers=1)


def test_data_of_two_kinds_are_refused_before_they_are_read(panoptic, tmp_path):
    file = panoptic([cells(40, 60, 6, 10)])
    other = tmp_path / "other.yaml"
    other.write_text(file.read_text().replace("name: drawn", "name: grey") + "channels: 1\n")
    with pytest.raises(UserError, match="drawn: panoptic, 3 channels, grey: panoptic, 1 channels"):
        fingerprint([file, other])
