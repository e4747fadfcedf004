"""``ocr-panoptic refine``: label PNGs, compared with pixels moved by hand."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.cli import call
from ocr_panoptic.formats.labels import read_label_image, write_label_png

refine = partial(call, "refine")
io = pytest.importorskip("scipy.io", reason="SciPy is only needed to read MATLAB files")


@pytest.fixture
def offsets(tmp_path) -> np.ndarray:
    """Return the offsets of the image city/a, whose file is written."""
    rng = np.random.default_rng(0)
    offsets = rng.integers(-1, 2, (12, 17, 2))
    (tmp_path / "offsets/city").mkdir(parents=True)
    io.savemat(tmp_path / "offsets/city/a.mat", {"mat": offsets})
    return offsets


def by_hand(values: np.ndarray, offsets: np.ndarray, scale: int) -> np.ndarray:
    found = np.empty_like(values)
    for y, x in np.ndindex(values.shape):
        v, u = (y, x) + scale * offsets[y, x]
        found[y, x] = values[np.clip(v, 0, 11), np.clip(u, 0, 16)]
    return found


def stored(tmp_path: Path, predictions: str, output: str, *more: object) -> None:
    named = ["--predictions", tmp_path / predictions, "--output", tmp_path / output]
    refine([*map(str, named), "--offsets", str(tmp_path / "offsets"), *map(str, more)])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("name", ["a", "city/a"])  # without and with the folder of the offsets
def test_label_pngs(dtype, scale, name, offsets, tmp_path):
    labels = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (12, 17)).astype(dtype)
    write_label_png(tmp_path / f"labels/{name}.png", labels)
    stored(tmp_path, "labels", "out", "--scale", scale)
    found = read_label_image(tmp_path / f"out/{name}.png")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, by_hand(labels, offsets, scale))


def test_the_oracle_corrects_predictions(tiny_data, clean_catalog, tmp_path):
    """The predictions are the truth shifted by a pixel; the offsets correct most pixels."""
    truths = {f.name: read_label_image(f) for f in (tiny_data / "tiny/raw/val/semantic").glob("*")}
    for name, truth in truths.items():
        write_label_png(tmp_path / "wrong" / name, np.concatenate([truth[:, :1], truth[:, :-1]], 1))
    run = ["--predictions", str(tmp_path / "wrong"), "--output", str(tmp_path / "out")]
    refine([*run, "--oracle", "tiny_sem_val", "--scale", "1"])
    before, after = (
        sum(np.count_nonzero(read_label_image(folder / name) != t) for name, t in truths.items())
        for folder in (tmp_path / "wrong", tmp_path / "out")
    )
    assert 0 < after < before / 2


@pytest.mark.parametrize(
    "predictions, output, message",
    [
        ("none", "out", "none: the folder contains no label PNGs"),
        ("other", "out", "1 of 1 predictions .*: b. .* 2 images with offsets are city/a, town/a"),
        ("twice", "out", "1 of 1 predictions .*: a"),
        ("small", "out", "a.png: the prediction has 17x6 pixels, but the offsets have 17x12"),
        ("broken", "out", "a.png"),
        ("colours", "out", "a.png: has the colours .1, 2, 3., but the classes"),
        ("small", "small", "small is in the folder"),
        ("small", "small/new", "new is in the folder"),
    ],
)
def test_refusals(predictions, output, message, offsets, tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "offsets/town").mkdir()
    io.savemat(tmp_path / "offsets/town/a.mat", {"mat": offsets})
    for name, height in (("other/b", 12), ("twice/a", 12), ("small/city/a", 6)):
        write_label_png(tmp_path / f"{name}.png", np.zeros((height, 17), np.uint8))
    for folder in ("broken/city", "colours/city"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "broken/city/a.png").write_text("no PNG")
    Image.new("RGB", (17, 12), (1, 2, 3)).save(tmp_path / "colours/city/a.png")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        stored(tmp_path, predictions, output)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    ["--weights c", "--offsets c --images d", "--offsets c MODEL.DEVICE cpu", "", "--scale 0"],
)
def test_contradicting_flags(words, capsys):
    with pytest.raises((SystemExit, ValueError)):
        refine(["--predictions", "a", "--output", "b", *words.split()])
