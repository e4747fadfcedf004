"""Tiles under unknown light, whose pixels show their class as often as the difficulty says."""

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.data_check import check_data
from studies.tiles import draw_tiles, generate_tiles

SIZE = 48


@pytest.mark.slow
def test_the_same_bytes_for_equal_arguments(tmp_path):
    def files(name: str, num_train: int = 3, seed: int = 0, difficulty: float = 0.5) -> dict:
        generate_tiles(tmp_path / name, num_train, 1, SIZE, seed, 8, difficulty)
        found = [path for path in (tmp_path / name / "raw").rglob("*") if path.is_file()]
        return {path.relative_to(tmp_path / name): path.read_bytes() for path in found}

    first = files("first")
    assert len(first) == 2 * 4 and files("again") == first
    assert files("fewer", num_train=2).items() <= first.items()
    assert not files("seed", seed=1).items() & first.items()
    harder = files("harder", difficulty=1.0)
    changed = [file.suffix for file in first if harder[file] != first[file]]
    assert changed == [".jpg"] * 4  # the same tiles under other light


@pytest.mark.slow
def test_files_hold_the_tiles_and_pass_the_checks(tmp_path, clean_catalog):
    generate_tiles(tmp_path, num_train=2, num_val=1, size=SIZE, seed=5, materials=32, difficulty=1)
    raw = tmp_path / "raw"
    pixels, labels = draw_tiles(np.random.default_rng([5, 0, 1]), SIZE, 32, 1)
    with Image.open(raw / "train/images/train_00001.jpg") as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (SIZE, SIZE))
        assert np.abs(np.asarray(image, float) - pixels).mean() < 5
    written = np.asarray(Image.open(raw / "train/semantic/train_00001.png"))
    assert np.array_equal(written, labels)
    summary = check_data([tmp_path / f"{tmp_path.name}.yaml"], workers=1)
    assert [split.images for split in summary.splits] == [2, 1]


def test_light_changes_only_hues():
    """The strongest light keeps labels, and each pixel's brightness and distance to grey."""
    white, labels = draw_tiles(np.random.default_rng(4), SIZE, 8, 0.0)
    turned, same = draw_tiles(np.random.default_rng(4), SIZE, 8, 1.0)
    assert np.array_equal(labels, same)
    white, turned = white.astype(float), turned.astype(float)
    assert np.abs(white.mean(axis=2) - turned.mean(axis=2)).max() < 1
    assert np.abs(white.std(axis=2) - turned.std(axis=2)).max() < 12  # the grain keeps its hue
    assert np.abs(white - turned).mean() > 10
    # Stamps, the bright pixels, have one hue under white light, whatever the material is.
    stamps = white[white.mean(axis=2) > 125]
    assert len(stamps) > 50 and stamps.std(axis=0).max() < 12


def coloured_pixels(seed: int, materials: int, difficulty: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each pixel's cell in a grid of 12x12x12 colours, and its label, without stamps."""
    tiles = [
        draw_tiles(np.random.default_rng([seed, i]), SIZE, materials, difficulty)
        for i in range(300)
    ]
    images, labels = map(np.stack, zip(*tiles))
    no_stamp = images.mean(axis=3) < 125
    cells = (images.astype(np.int64) * 12 // 256) @ np.array([144, 12, 1])
    return cells[no_stamp], labels[no_stamp]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("materials", "difficulty", "right"), [(8, 0.0, 1.0), (8, 0.5, 1 / 4), (32, 0.5, 1 / 16)]
)
def test_the_best_classifier_of_pixels_is_as_good_as_the_difficulty(materials, difficulty, right):
    """With enough images, no classifier beats the most frequent training label of each colour."""
    counts = np.zeros((12**3, materials))
    np.add.at(counts, coloured_pixels(0, materials, difficulty), 1)
    cells, labels = coloured_pixels(1, materials, difficulty)
    assert (counts.argmax(axis=1)[cells] == labels).mean() == pytest.approx(right, abs=0.04)
