"""
Images on their way to a network: size check, resizing in any number of channels, cropping.

Detectron2 gives whole images to Pillow. If an image has four channels, Pillow takes the last for
opacity and weights the others by it. It does not know five channels. Detectron2 resizes floats
without antialiasing.

Shape letters: H, W size of the image, C channels.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from detectron2.data import detection_utils as utils
from detectron2.data import transforms as T
from fvcore.transforms.transform import CropTransform, Transform
from PIL import Image

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import COLOURS


def check_image_size(record: dict, image: np.ndarray) -> None:
    """
    Check the size of an image as Detectron2 does, or set it if the record has none.

    Args:
        image: [H, W, C].
    """
    try:
        utils.check_image_size(record, image)
    except utils.SizeMismatchError as error:
        raise UserError(
            f"{record['file_name']}: the image has {image.shape[1]}x{image.shape[0]} pixels, "
            f"expected {record['width']}x{record['height']} (width x height). Has it "
            "changed since the data were checked?"
        ) from error


def check_label_size(size: tuple[int, int], record: dict, path: str | None = None) -> None:
    """
    Check that the labels of a PNG are as large as the image.

    Args:
        size: H, W of the labels.
        path: file of the PNG; by default the record names it.
    """
    if size != (record["height"], record["width"]):
        path = path or record.get("sem_seg_file_name") or record["pan_seg_file_name"]
        raise UserError(
            f"{path}: the PNG has {size[1]}x{size[0]} pixels, the image {record['file_name']} "
            f"{record['width']}x{record['height']} (width x height). They must be equal."
        )


class ChannelInput(T.AugInput):
    """
    Detectron2's ``AugInput`` for images that are uint8 or float32 [H, W, C].

    Each channel is resized on its own, in Pillow's arithmetic.
    """

    image: np.ndarray
    sem_seg: Any  # [H, W], [H, W, C] or None

    def transform(self, tfm: Transform) -> None:
        if isinstance(tfm, T.ResizeTransform):
            self.image = resized(self.image, tfm.new_h, tfm.new_w, tfm.interp)
        else:
            self.image = tfm.apply_image(self.image)
        if self.sem_seg is not None:
            self.sem_seg = tfm.apply_segmentation(self.sem_seg)


def resized(
    image: np.ndarray,
    height: int,
    width: int,
    interpolation: int,
    box: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
    """
    Resize each channel of an image on its own.

    Args:
        image: uint8 or float32 [H, W, C].
        interpolation: Pillow's filter.
        box: left, top, right and bottom of the wanted part, in pixels; None for the whole image.

    Returns:
        array of the same type, [height, width, C].
    """
    order = 1
    if image.dtype == np.uint8 and image.shape[2] == COLOURS:
        order = -1 if image.strides[2] < 0 else 1  # BGR is a view of RGB, which needs no copy
        colours = Image.fromarray(np.ascontiguousarray(image[:, :, ::order]))
        channels: Sequence[Image.Image] = colours.resize(
            (width, height), interpolation, box
        ).split()
    else:
        channels = [
            Image.fromarray(np.ascontiguousarray(part)).resize((width, height), interpolation, box)
            for part in image.transpose(2, 0, 1)
        ]
    # One plane after the other in memory, as a network takes them: interleaving takes longer.
    planes = np.stack([np.asarray(channel) for channel in channels[::order]])
    return planes.transpose(1, 2, 0)


SUPPORT = 2  # pixels that the widest filter, the bicubic, reads on each side of a place


class ResizedCrop(T.Augmentation):
    """
    A resize and a crop in one step, equal to one after the other.

    Random numbers and labels are the same; an image's values differ by at most 2, through rounding.
    """

    def __init__(
        self, resize: T.Augmentation, crop: T.RandomCrop | T.RandomCrop_CategoryAreaConstraint
    ):
        super().__init__()
        self._init(locals())

    def get_transform(self, image: np.ndarray, sem_seg: np.ndarray | None) -> Transform:
        resize = self.resize.get_transform(image)
        is_resized = isinstance(resize, T.ResizeTransform)
        size = (resize.new_h, resize.new_w) if is_resized else image.shape[:2]
        shape = np.broadcast_to(np.uint8(0), size)  # a crop looks only at the shape
        if isinstance(self.crop, T.RandomCrop):
            crop = self.crop.get_transform(shape)
        elif self.crop.single_category_max_area >= 1:
            crop = self.crop.get_transform(shape, None)
        else:
            crop = self.crop.get_transform(shape, resize.apply_segmentation(sem_seg))
        return ResizedCropTransform(resize, crop) if is_resized else crop


class ResizedCropTransform(Transform):
    """A resize followed by a crop, in one step."""

    def __init__(self, resize: T.ResizeTransform, crop: CropTransform):
        super().__init__()
        self._set_attributes(locals())

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        """Return the crop of an image, uint8 or float32 [H, W, C], reading only what it shows."""
        resize, crop = self.resize, self.crop
        rows, (top, bottom) = _crop_span(resize.h, resize.new_h, crop.y0, crop.h)
        columns, (left, right) = _crop_span(resize.w, resize.new_w, crop.x0, crop.w)
        box = left, top, right, bottom
        return resized(img[rows, columns], crop.h, crop.w, resize.interp, box)

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        """Return the crop of integers [H, W] or [H, W, C], resized by nearest neighbour."""
        rows = _nearest(self.resize.h, self.resize.new_h)[self.crop.y0 :][: self.crop.h]
        columns = _nearest(self.resize.w, self.resize.new_w)[self.crop.x0 :][: self.crop.w]
        return segmentation[rows][:, columns]

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return self.crop.apply_coords(self.resize.apply_coords(coords))

    def apply_polygons(self, polygons: list[np.ndarray]) -> list[np.ndarray]:
        return self.crop.apply_polygons(self.resize.apply_polygons(polygons))


def _crop_span(old: int, new: int, start: int, length: int) -> tuple[slice, tuple[float, float]]:
    """
    Return the pixels of a side that a crop reads, and the crop's begin and end within them.

    The side has ``old`` pixels, and ``new`` pixels after the resize. The crop is
    ``start``..``start + length`` of the new pixels.
    """
    scale = old / new
    first, last = start * scale, min((start + length) * scale, old)
    margin = SUPPORT * max(scale, 1) + 1
    low, high = max(0, math.floor(first - margin)), min(old, math.ceil(last + margin))
    return slice(low, high), (first - low, last - low)


def _nearest(old: int, new: int) -> np.ndarray:
    """Return the old pixel that Pillow takes for each of the new pixels."""
    places = Image.fromarray(np.arange(old, dtype=np.int32)[None])
    return np.asarray(places.resize((new, 1), Image.Resampling.NEAREST))[0]
