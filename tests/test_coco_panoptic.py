"""Panoptic PNGs, compared with ids by hand and with panopticapi."""

import numpy as np
import pytest
from panopticapi import utils
from PIL import Image

from ocr_panoptic.formats.coco_panoptic import (
    id2rgb,
    read_panoptic_png,
    rgb2id,
    write_panoptic_png,
)


def test_hand_worked_ids():
    rgb = np.array([[[1, 0, 0], [0, 1, 0], [0, 0, 1], [255, 255, 255], [7, 2, 3]]], np.uint8)
    ids = rgb2id(rgb)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[1, 256, 65536, 16777215, 7 + 2 * 256 + 3 * 65536]]
    assert np.array_equal(id2rgb(ids), rgb)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_equals_panopticapi(dtype, tmp_path):
    high = min(256**3, np.iinfo(dtype).max + 1)
    ids = np.random.default_rng(0).integers(0, high, (17, 9)).astype(dtype)
    assert np.array_equal(id2rgb(ids), utils.id2rgb(ids.astype(np.int64)))
    rgb = np.random.default_rng(1).integers(0, 256, (17, 9, 3)).astype(np.uint8)
    assert np.array_equal(rgb2id(rgb), utils.rgb2id(rgb))
    write_panoptic_png(tmp_path / "a.png", ids)
    assert np.array_equal(read_panoptic_png(tmp_path / "a.png"), ids)


@pytest.mark.parametrize("bad", [[[-1]], [[256**3]]])
def test_ids_out_of_range(bad):
    with pytest.raises(ValueError, match=r"ids"):
        id2rgb(np.array(bad))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16"])
def test_png_that_is_not_rgb(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png: expected an RGB image .* found mode"):
        read_panoptic_png(tmp_path / "a.png")


def test_opaque_png(tmp_path):
    Image.new("RGBA", (4, 4), (7, 1, 0, 255)).save(tmp_path / "a.png")
    assert (read_panoptic_png(tmp_path / "a.png") == 263).all()
