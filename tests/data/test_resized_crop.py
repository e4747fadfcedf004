"""A resize and a crop in one, against one after the other."""

import numpy as np
import pytest
from detectron2.data import transforms as T
from PIL import Image

from ocr_panoptic.data.image_input import ChannelInput, ResizedCrop
from ocr_panoptic.data.semantic.augmentation import RandomScaleAspect

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
    for _ in range(30):
        inputs.image, inputs.sem_seg = image, labels
        transforms = T.AugmentationList(augmentations)(inputs)
        results.append(
            (
                inputs.image,
                inputs.sem_seg,
                transforms.apply_box(np.array([[10.0, 8.5, 61.0, 40.0]])),
            )
        )
    return results, np.random.rand()  # noqa: NPY002


@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS)
@pytest.mark.parametrize("resize", RESIZES.values(), ids=RESIZES)
def test_equals_one_after_the_other(resize, crop):
    """Draws, boxes and labels exactly; images of noise, the hardest, by a level or two."""
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
    """Labels of more than 8 bits are resized as colours are."""
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (60, 90, channels)).astype(dtype)
    labels = rng.integers(0, 256, (60, 90, 3), np.uint8)
    steps = RESIZES["scaled"], CROPS["crop"]
    expected, _ = augmented(image, labels, *steps)
    found, _ = augmented(image, labels, ResizedCrop(*steps))
    for (ours, ids, _), (theirs, other_ids, _) in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype == dtype and np.array_equal(ids, other_ids)
        assert np.allclose(ours, theirs, rtol=0, atol=2 if dtype == np.uint8 else 0.01)
