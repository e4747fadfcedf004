"""Separate mask files: to which image and class they belong."""

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.errors import UserError
from ocr_panoptic.workbench.importing.mask_files import read_masks

ONE, TWO = np.zeros((2, 12, 16), np.uint8)
ONE[1:5, 1:7], TWO[6:11, 8:15] = 255, 255


def save(path, pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize(
    ("photos", "masks", "labels"),
    [
        (["i/a.jpg"], ["m/a/car_1.png", "m/a/car_2.png"], "car car"),
        (["i/a.jpg"], ["m/a/left car.bmp", "m/a/tree.tif"], "left car, tree"),
        (["i/a.jpg", "i/b.jpg"], ["m/car/a.png", "m/tree/b.png"], "car tree"),
        (["i/a_1.jpg", "i/a.jpg"], ["m/a_1_car.png", "m/a-tree-07.png"], "car tree"),
        (["m/x/images/x.png"], ["m/x/masks/4f3a01bc.png", "m/x/masks/0a.png"], "object object"),
        (["i/a.jpg"], ["m/a/1.png", "m/a/mask_2.png"], "object object"),
        (["i/p/1.jpg", "i/q/1.jpg"], ["m/p/1/car.png", "m/q/1/tree.png"], "car tree"),
        (["i/A b.JPG"], ["m/A b/Stra\u00dfe 3.PNG", "m/A b/x.gif"], "Stra\u00dfe, x"),
    ],
)
def test_owners_and_classes(tmp_path, photos, masks, labels):
    for photo in photos:
        save(tmp_path / photo, np.zeros((12, 16, 3), np.uint8))
    for mask, pixels in zip(masks, (ONE, TWO), strict=True):
        save(tmp_path / mask, pixels)
    images = tmp_path / "i" if photos[0][0] == "i" else None
    annotations = read_masks(tmp_path / "m", images)
    found = list(annotations)
    expected = labels.split(", ") if ", " in labels else labels.split()
    segments = sorted(
        (s.pixels().tobytes(), s.label, s.instance) for i in found for s in i.segments
    )
    instance = True if set(expected) == {"object"} else None
    assert segments == sorted(
        ((pixels > 0).tobytes(), label, instance) for pixels, label in zip((ONE, TWO), expected)
    )
    quick = [label for _, entry in annotations.entries for label in annotations.labels(entry)]
    assert sorted(quick) == sorted(expected)


def test_numbered_objects_and_smoothed_masks(tmp_path, caplog):
    for name in ("a", "b", "none"):
        save(tmp_path / f"i/{name}.png", np.zeros((12, 16, 3), np.uint8))
    save(tmp_path / "m/a.tif", (ONE // 255 + TWO // 255 * np.uint16(700)).astype(np.uint16))
    smooth = ONE.copy()
    smooth[0, 1:7], smooth[5, 1:7], smooth[1:5, 7] = 50, 60, 200
    save(tmp_path / "m/b.png", smooth)
    save(tmp_path / "m/stranger.png", ONE)
    numbered, smoothed = read_masks(tmp_path / "m", tmp_path / "i")
    assert [s.pixels().sum() for s in numbered.segments] == [24, 35]
    assert [s.pixels().sum() for s in smoothed.segments] == [28]
    assert "1 masks have no image, and are left out: stranger.png" in caplog.text
    assert "1 images have no mask, and are left out: none.png" in caplog.text


def test_many_small_numbered_objects_stay_apart(tmp_path):
    spots = np.zeros((80, 80), np.uint8)
    spots[::4, ::8] = np.arange(1, 201).reshape(20, 10)
    spots[1::4, ::8] = spots[::4, ::8]
    for folder, pixels in (("i", spots), ("m", spots)):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels).save(tmp_path / folder / "a.png")
    (image,) = read_masks(tmp_path / "m", tmp_path / "i")
    assert [s.pixels().sum() for s in image.segments] == [2] * 200


def test_masks_without_an_image(tmp_path):
    for name in ("i/p/1.png", "i/q/1.png", "i/2.png"):
        save(tmp_path / name, np.zeros((12, 16, 3), np.uint8))
    save(tmp_path / "m/x.png", ONE)
    with pytest.raises(UserError, match="none of 1 masks has the name of an image in"):
        read_masks(tmp_path / "m", tmp_path / "i")
    save(tmp_path / "m/1/car.png", ONE)
    with pytest.raises(DataFaults, match=r"car.png: is it of p/1.png, q/1.png\?"):
        read_masks(tmp_path / "m", tmp_path / "i")
    (tmp_path / "m/1/car.png").unlink()
    save(tmp_path / "m/2/car.png", ONE.T)
    with pytest.raises(DataFaults, match="12x16 pixels, the image .* 16x12"):
        list(read_masks(tmp_path / "m", tmp_path / "i"))
