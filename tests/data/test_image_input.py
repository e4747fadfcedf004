"""Augmentation of any number of channels, and resize and crop in one step, as in Detectron2."""

import numpy as np
import pytest
from detectron2.data import transforms as T
from PIL import Image

from ocr_panoptic.data.image_input import ChannelInput, ResizedCrop
from ocr_panoptic.data.semantic.augmentation import RandomScaleAspect

SIZES = [(9, 17), (50, 40), (24, 31)]  # smaller, larger, almost equal
RESIZING = [(s, i) for s in SIZES for i in (Image.BILINEAR, Image.BICUBIC)]


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (24, 32, 6), np.uint8)


def transformed(image: np.ndarray, transform: T.Transform) -> np.ndarray:
    inputs = ChannelInput(image)
    inputs.transform(transform)
    return inputs.image


@pytest.mark.parametrize(("size", "interpolation"), RESIZING)
def test_channels_are_resized_as_colours(image, size, interpolation):
    """Any three channels equal Detectron2's result; no channel counts as opacity."""
    resize = T.ResizeTransform(24, 32, *size, interpolation)
    expected = [resize.apply_image(image[:, :, :3]), resize.apply_image(image[:, :, 3:])]
    expected = np.concatenate(expected, axis=2)
    for channels in range(1, 7):
        found = transformed(image[:, :, :channels], resize)
        np.testing.assert_array_equal(found, expected[:, :, :channels])
        assert found.transpose(2, 0, 1).flags.c_contiguous, "as a network takes it"
    np.testing.assert_array_equal(transformed(image[:, :, 2::-1], resize), expected[:, :, 2::-1])
    # Detectron2's result for four channels differs.
    assert (resize.apply_image(image[:, :, :4]) != expected[:, :, :4]).mean() > 0.1


@pytest.mark.parametrize(("size", "interpolation"), RESIZING)
def test_floats_are_resized_as_bytes(image, size, interpolation):
    """Floats equal bytes except for rounding, and may lie outside 0..255."""
    image = image // 2 + 64  # bytes are clipped after the rows
    resize = T.ResizeTransform(24, 32, *size, interpolation)
    found = transformed(image.astype(np.float32), resize)
    assert found.dtype == np.float32
    expected = transformed(image, resize)
    np.testing.assert_allclose(found, expected, atol=2)  # rounded twice
    large = transformed(1e4 * image.astype(np.float32) - 7e5, resize)
    np.testing.assert_allclose(large, 1e4 * found - 7e5, rtol=1e-4, atol=1)


RESIZES = {
    "scaled": RandomScaleAspect([0.4, 2.2], [0.7, 1.4]),
    "bilinear": RandomScaleAspect([0.4, 2.2], [0.7, 1.4], Image.BILINEAR),
    "shortest edge": T.ResizeShortestEdge((30, 61, 97), 200, "choice"),
    "none": T.ResizeShortestEdge((0,), 200, "choice"),
}
CROPS = {
    "crop": T.RandomCrop("absolute", (33, 47)),
    "relative": T.RandomCrop("relative_range", (0.3, 0.6)),
    "of several classes": T.RandomCrop_CategoryAreaConstraint("absolute", (33, 47), 0.3, 255),
    "of any classes": T.RandomCrop_CategoryAreaConstraint("absolute", (33, 47), 1.0, 255),
}


def augmented(image, labels, *augmentations):
    np.random.seed(7)  # noqa: NPY002, Detectron2's augmentations draw from it
    inputs, results = ChannelInput(image, sem_seg=labels), []
    for _ in range(12):
        inputs.image, inputs.sem_seg = image, labels
        transforms = T.AugmentationList(augmentations)(inputs)
        boxes = transforms.apply_box(np.array([[10.0, 8.5, 61.0, 40.0]]))
        results.append((inputs.image, inputs.sem_seg, boxes))
    return results, np.random.rand()  # noqa: NPY002


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
@pytest.mark.parametrize("resize", RESIZES.values(), ids=RESIZES)
def test_equals_one_after_the_other(resize, crop):
    """Random draws, boxes and labels are equal; an image of noise differs by a level or two."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (83, 131, 3), np.uint8)
    labels = rng.integers(0, 4, (83, 131)).astype(np.uint8)
    expected, next_draw = augmented(image[:, :, ::-1], labels, resize, crop)
    found, ours = augmented(image[:, :, ::-1], labels, ResizedCrop(resize, crop))
    assert ours == next_draw
    for mine, theirs in zip(found, expected, strict=True):
        assert mine[0].dtype == np.uint8 and mine[0].shape == theirs[0].shape
        assert np.abs(mine[0].astype(int) - theirs[0]).max() <= 2
        for own, other in zip(mine[1:], theirs[1:], strict=True):
            assert np.array_equal(own, other)


@pytest.mark.parametrize(("channels", "dtype"), [(3, np.float32), (5, np.float32), (4, np.uint8)])
def test_other_channels(channels, dtype):
    """Labels of more than 8 bits are resized like colours."""
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (60, 90, channels)).astype(dtype)
    labels = rng.integers(0, 256, (60, 90, 3), np.uint8)
    steps = RESIZES["scaled"], CROPS["crop"]
    expected, _ = augmented(image, labels, *steps)
    found, _ = augmented(image, labels, ResizedCrop(*steps))
    for (ours, ids, _), (theirs, other_ids, _) in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype == dtype and np.array_equal(ids, other_ids)
        assert np.allclose(ours, theirs, rtol=0, atol=2 if dtype == np.uint8 else 0.01)
