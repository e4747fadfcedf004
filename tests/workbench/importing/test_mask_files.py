"""Separate mask files: to which image and class they belong."""

from contextlib import nullcontext

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
        (["i/a.jpg"], ["m/a/grade1.png", "m/a/grade2.png"], "grade1 grade2"),
        (["i/a.jpg"], ["m/a/cat 3.png", "m/a/cat-2 (1).png"], "cat cat"),
        (["i/a.jpg"], ["m/a/grade1_2.png", "m/a/mask2.png"], "grade1 object"),
        (["i/a.jpg", "i/b.jpg"], ["m/mask_a.png", "m/cat_b.png"], "object cat"),
        (["i/a.jpg", "i/b.jpg"], ["m/a_cp_masks.png", "m/b_seg.png"], "object object"),
        # Masks beside the images.
        (["m/a.jpg", "m/b.jpg"], ["m/a.png", "m/b.png"], "object object"),
        (["m/a.png", "m/b.png"], ["m/a_mask.png", "m/b-mask.png"], "object object"),
        (["m/a.jpg"], ["m/a_cat_1.png", "m/a_cat_2.png"], "cat cat"),
        (["m/a.png", "m/a_2.png"], ["m/a_cat.png", "m/a_2_cat.png"], "cat cat"),
        (["m/a.png"], ["m/a_cat.png", "m/a_cat_1.png"], "cat cat"),
        (["m/a.jpg", "m/a_2.jpg"], ["m/a/1.png", "m/a_2/1.png"], "object object"),
        (["m/a.jpg", "m/b.jpg"], ["m/a_mask.jpg", "m/b_mask.jpg"], "object object"),
        (["p/a.png", "p/b.png"], ["p/cats/a.png", "p/cats/b.png"], "object object"),
    ],
)
def test_owners_and_classes(tmp_path, photos, masks, labels):
    for photo in photos:
        save(tmp_path / photo, np.zeros((12, 16, 3), np.uint8))
    for mask, pixels in zip(masks, (ONE, TWO), strict=True):
        save(tmp_path / mask, pixels)
    folders = {"i": ("m", "i"), "m": ("m",), "p": ("p/cats", "p")}[photos[0][0]]
    found = list(read_masks(*(tmp_path / folder for folder in folders)))
    expected = labels.split(", ") if ", " in labels else labels.split()
    segments = sorted(
        (s.pixels().tobytes(), s.label, s.instance) for i in found for s in i.segments
    )
    instance = True if set(expected) == {"object"} else None
    assert segments == sorted(
        ((pixels > 0).tobytes(), label, instance) for pixels, label in zip((ONE, TWO), expected)
    )


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
    assert "left out 1 mask(s) without an image: stranger.png" in caplog.text
    assert "left out 1 image(s) without a mask: none.png" in caplog.text


@pytest.mark.parametrize(
    "numbers", [range(1, 201), range(56, 256), range(20, 256, 47), [*range(1, 13), 255]]
)
@pytest.mark.parametrize("step", [3, 2])
def test_small_numbered_objects_stay_apart(tmp_path, numbers, step):
    """Some files lack numbers, and in some all objects touch each other."""
    spots = np.zeros((64, 64), np.uint8)
    for place, number in enumerate(numbers):
        y, x = step * (place // 20), step * (place % 20)
        spots[y : y + 2, x : x + 2] = number
    save(tmp_path / "i/a.png", spots)
    save(tmp_path / "m/a.png", spots)
    (image,) = read_masks(tmp_path / "m", tmp_path / "i")
    assert [s.pixels().sum() for s in image.segments] == [4] * len(numbers)


def test_all_greys_at_a_border_are_one_mask(tmp_path):
    ramp = np.zeros((64, 256), np.uint8)
    ramp[20:], ramp[19] = 255, np.arange(256)
    save(tmp_path / "i/a.png", ramp)
    save(tmp_path / "m/a.png", ramp)
    (image,) = read_masks(tmp_path / "m", tmp_path / "i")
    (segment,) = image.segments
    assert np.array_equal(segment.pixels(), ramp > 127)


def test_masks_without_an_image(tmp_path):
    for name in ("i/p/1.png", "i/q/1.png", "i/2.png"):
        save(tmp_path / name, np.zeros((12, 16, 3), np.uint8))
    save(tmp_path / "m/x.png", ONE)
    with pytest.raises(UserError, match=r"found 1 mask\(s\), but not their images in"):
        read_masks(tmp_path / "m", tmp_path / "i")
    save(tmp_path / "m/1/car.png", ONE)
    with pytest.raises(DataFaults, match=r"car.png: several images match: p/1.png, q/1.png"):
        read_masks(tmp_path / "m", tmp_path / "i")
    (tmp_path / "m/1/car.png").unlink()
    save(tmp_path / "m/2/car.png", ONE.T)
    with pytest.raises(DataFaults, match="12x16 pixels, but the image .* 16x12"):
        list(read_masks(tmp_path / "m", tmp_path / "i"))
    save(tmp_path / "m/2/car.png", np.stack([ONE, TWO, TWO], 2))
    with pytest.raises(
        DataFaults, match=r"car.png: the mask has the colours .*\[255, 0, 0\].* number the objects"
    ):
        list(read_masks(tmp_path / "m", tmp_path / "i"))


def test_by_products_of_cellpose_are_left_out(tmp_path, caplog):
    save(tmp_path / "a.png", np.zeros((12, 16, 3), np.uint8))
    for end in ("cp_masks.png", "flows.tif", "outlines.png", "flows_cp_masks.tif"):
        save(tmp_path / f"a_{end}", ONE if end == "cp_masks.png" else TWO)
    ((segment,),) = (image.segments for image in read_masks(tmp_path))
    assert np.array_equal(segment.pixels(), ONE > 0) and segment.label == "object"
    assert "left out 3 Cellpose file(s) that are not masks: a_flows.tif," in caplog.text


@pytest.mark.parametrize(
    "palette, message",
    [
        ([(255, 255, 255), (0, 0, 0)], "black at index 1 .* the background is unclear"),
        ([(255, 0, 0), (255, 255, 255)], r"the colour \[255, 0, 0\] at index 0, .* is unclear"),
        ([(0, 0, 0), (255, 255, 255)], None),
        ([(255, 255, 255), (255, 0, 0)], None),
    ],
)
def test_the_background_of_a_palette_is_its_first_colour(tmp_path, palette, message):
    """Paint programs sort palettes, and put an object first."""
    save(tmp_path / "images/a.png", np.zeros((12, 16, 3), np.uint8))
    mask = Image.fromarray((ONE > 0).astype(np.uint8), "P")
    mask.putpalette([value for colour in palette for value in colour])
    (tmp_path / "masks").mkdir()
    mask.save(tmp_path / "masks/a.png")
    with pytest.raises(DataFaults, match=message) if message else nullcontext():
        (image,) = read_masks(tmp_path / "masks", tmp_path / "images")
        assert np.array_equal(image.segments[0].pixels(), ONE > 0)
