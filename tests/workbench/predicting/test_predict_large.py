"""tools/predict.py on images that are seen, or drawn, in parts."""

import json
import sys

import numpy as np
import pytest
from panopticapi.utils import rgb2id
from PIL import Image

from ocr_panoptic.engine import outputs, rows
from ocr_panoptic.formats.segment_runs import segment_statistics
from ocr_panoptic.formats.video import VideoReader
from ocr_panoptic.visualization.overlays import draw_segments
from support.tiny_runs import TILES, pixels, write_video


@pytest.mark.slow
def test_windows_of_a_large_image(model_of, call, images, tmp_path):
    """Written row by row, what TEST.SLIDING_WINDOW gives."""
    model = model_of(
        "semantic",
        *("TEST.SLIDING_WINDOW.SIZE", "[40, 40]", "TEST.SLIDING_WINDOW.STRIDE", "[24, 30]"),
    )
    assert call(model, images, "--overlays", "--max-pixels", 100) == 0
    assert call(model, images, "--overlays", output="whole") == 0
    for path in (tmp_path / "whole/overlays").iterdir():
        assert path.read_bytes() == (tmp_path / "out/overlays" / path.name).read_bytes()
    for path in (tmp_path / "whole").rglob("*.png"):
        other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
        assert np.array_equal(pixels(path), pixels(other)) and len(np.unique(pixels(path))) > 1
    texts = [(tmp_path / name / "labels.json").read_text() for name in ("out", "whole")]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_tile_of_a_panoptic_model(model_of, call, images, tmp_path):
    """A tile that holds all of the image gives the files of the whole image. Segments are numbered
    in the same order, of instances and then by class."""
    size = "TEST.SLIDING_WINDOW.SIZE", "[512, 512]", "TEST.SLIDING_WINDOW.STRIDE", "[256, 256]"
    model = model_of("panoptic", *size, "INPUT.MIN_SIZE_TEST", 0)
    assert call(model, images, "--overlays", "--max-pixels", 1000) == 0
    assert call(model, images, "--overlays", output="whole") == 0
    for path in (p for p in (tmp_path / "whole").rglob("*.*g") if p.suffix in (".png", ".jpg")):
        other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
        assert np.array_equal(pixels(path), pixels(other)) and len(np.unique(pixels(path))) > 1
    for name in ("panoptic.json", "instances.json"):
        found, expected = (json.loads((tmp_path / f / name).read_text()) for f in ("out", "whole"))
        assert found == expected


@pytest.mark.slow
def test_tiles_of_a_panoptic_model(model_of, call, images, tmp_path, caplog):
    """Files are consistent: areas and boxes are those of the PNG, and an evaluation reads
    it."""
    truth = images.parent / "panoptic.json"
    model = model_of("panoptic", *TILES)
    assert call(model, images, "--overlays", "--max-pixels", 100, "--eval", truth) == 0
    for annotation in json.loads((tmp_path / "out/panoptic.json").read_text())["annotations"]:
        ids = rgb2id(pixels(tmp_path / "out/panoptic" / annotation["file_name"]))
        segments = {s["id"]: (s["area"], s["bbox"]) for s in annotation["segments_info"]}
        assert segments == segment_statistics(ids)
    assert "lie in no tile of TEST.SLIDING_WINDOW as a whole" in caplog.text
    assert not [*(tmp_path / "out").rglob(".*.tmp")]


@pytest.mark.slow
def test_frames_of_a_video(model_of, call, images, tmp_path):
    """They are seen in parts, too: the same pixels as images give the same files."""
    video, frames, model = tmp_path / "v.avi", tmp_path / "frames", model_of("panoptic", *TILES)
    write_video(video, sorted(images.iterdir())[:2])
    frames.mkdir()
    for number, frame in enumerate(VideoReader(video)):
        Image.fromarray(frame[:, :, ::-1]).save(frames / f"{number:06d}.png")
    for source, folder in ((video, "out"), (frames, "of_images")):
        assert call(model, source, "--max-pixels", 100, output=folder) == 0
    expected = {p.relative_to(tmp_path / "of_images") for p in tmp_path.glob("of_images/*/*.png")}
    assert len(expected) == 6
    for name in expected:
        found = (tmp_path / folder / name for folder in ("out", "of_images"))
        assert np.array_equal(*map(pixels, found)), name


def test_overlays_of_larger_images_are_smaller(monkeypatch):
    """Every third pixel of 20x31, whatever the bands, outlined as they are then."""
    monkeypatch.setattr(outputs, "OVERLAY_PIXELS", 70)
    monkeypatch.setattr(outputs, "ROWS_AT_ONCE", 2)
    random = np.random.default_rng(0)
    rgb = random.integers(0, 256, (20, 31, 3), dtype=np.uint8)
    labels = random.integers(0, 2, (20, 31), dtype=np.uint8)
    colors = {0: (200, 0, 0), 1: (0, 0, 200)}
    overlay = outputs.Overlay((20, 31))
    for band in (slice(0, 1), slice(1, 8), slice(8, 9), slice(9, 20)):
        overlay.add(rgb[band], labels[band])
    assert np.array_equal(
        overlay.draw(colors), draw_segments(rgb[::3, ::3], labels[::3, ::3], colors)
    )


@pytest.mark.slow
def test_regions_of_the_whole_image(model_of, call, images, tmp_path, monkeypatch):
    """Tiles that hold all of the image: nothing but rounding differs. Without pyvips an image is
    decoded once for both passes."""
    monkeypatch.setitem(sys.modules, "pyvips", None)
    read, seen = rows.read_picture, []
    monkeypatch.setattr(rows, "read_picture", lambda *args: seen.append(args) or read(*args))
    model = model_of(
        "semantic",
        *("TEST.SLIDING_WINDOW.SIZE", "[192, 192]", "TEST.SLIDING_WINDOW.STRIDE", "[64, 64]"),
    )
    assert call(model, images, "--whole-regions") == 0
    assert len(seen) == 4
    assert call(model_of("semantic"), images, output="whole") == 0
    for path in (tmp_path / "whole/confidence").iterdir():
        other = pixels(tmp_path / "out/confidence" / path.name)
        assert np.abs(pixels(path).astype(int) - other).max() <= 1
