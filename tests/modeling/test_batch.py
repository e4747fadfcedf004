"""Batches of images of several sizes, against Detectron2's."""

import pytest
import torch
from detectron2.structures import ImageList

from ocr_panoptic.modeling.inference import padded_batch


@pytest.mark.parametrize("sizes", [[(61, 83)], [(61, 83), (64, 80), (5, 96)], [(32, 32)] * 2])
@pytest.mark.parametrize("divisor, value", [(1, 0.0), (32, 0.0), (12, 255)])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_images_and_labels(sizes, divisor, value, channels):
    maps = [100 * torch.rand(*channels, *size) for size in sizes]
    maps = [map_.long() for map_ in maps] if value == 255 else maps
    found = padded_batch(maps, divisor, value)
    expected = ImageList.from_tensors(maps, divisor, value).tensor
    assert found.dtype == expected.dtype and torch.equal(found, expected)
