"""
Prepare images for a network: check sizes, resize any number of channels, crop, flip and rotate.

This module resizes each channel separately. Detectron2 treats a fourth channel as opacity, weights
the first three channels by it, and resizes floats without antialiasing.

In shapes, H and W are the height and width of the image, and C is the number of channels.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import detection_utils as utils
from detectron2.data import transforms as T
from fvcore.transforms.transform import CropTransform, Transform
from PIL import Image

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import COLOURS


def check_image_size(record: dict, image: np.ndarray) -> None:
    """
    Raise UserError if the size of an image [H, W, C] differs from the size in its record.

    If the record has no size, the size of the image is added to the record.
    """
    try:
        utils.check_image_size(record, image)
    except utils.SizeMismatchError as error:
        raise UserError(
            f"{record['file_name']}: the image has {image.shape[1]}x{image.shape[0]} pixels, "
            f"expected {record['width']}x{record['height']} (width x height). If the image "
            "has changed, restore it or check the data again; otherwise, correct the size in the "
            "annotations."
        ) from error


def check_label_size(size: tuple[int, int], record: dict, path: str | None = None) -> None:
    """
    Raise UserError if the size (H, W) of labels differs from the image size in ``record``.

    Args:
        path: label file that the message names; by default, the label file in the record.
    """
    if size != (record["height"], record["width"]):
        path = path or record.get("sem_seg_file_name") or record["pan_seg_file_name"]
        raise UserError(
            f"{path}: the labels have {size[1]}x{size[0]} pixels, but the image "
            f"{record['file_name']} has {record['width']}x{record['height']} (width x height). "
            "The sizes must be equal."
        )


class ChannelInput(T.AugInput):
    """An ``AugInput`` that resizes uint8 or float32 images [H, W, C] with :func:`resized`."""

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
    Resize each channel of an image separately with Pillow, first its rows, then its columns.

    Args:
        image: uint8 or float32 [H, W, C].
        interpolation: resampling filter of Pillow.
        box: region to resize (left, top, right, bottom), in pixels; by default the whole image.

    Returns:
        resized image in the same dtype, [height, width, C].
    """
    left, top, right, bottom = box or (0, 0, image.shape[1], image.shape[0])

    def resize(part: Image.Image) -> Image.Image:
        # Given both sides at once, Pillow 13 chooses the order by the sizes. A crop would then
        # differ from the resized image by up to 24 levels.
        part = part.resize((width, part.height), interpolation, (left, 0, right, part.height))
        return part.resize((width, height), interpolation, (0, top, width, bottom))

    order = 1
    if image.dtype == np.uint8 and image.shape[2] == COLOURS:
        order = -1 if image.strides[2] < 0 else 1  # a BGR view of RGB needs no copy
        colours = Image.fromarray(np.ascontiguousarray(image[:, :, ::order]))
        channels: Sequence[Image.Image] = resize(colours).split()
    else:
        channels = [
            resize(Image.fromarray(np.ascontiguousarray(part))) for part in image.transpose(2, 0, 1)
        ]
    # Keep each channel contiguous in memory, as networks need it: interleaving is slower.
    planes = np.stack([np.asarray(channel) for channel in channels[::order]])
    return planes.transpose(1, 2, 0)


SUPPORT = 2  # pixels that the widest filter (bicubic) reads on each side of a position


class ResizedCrop(T.Augmentation):
    """
    Resize and crop in one step, which computes only the pixels of the crop.

    The result equals resizing and then cropping, except that uint8 values can differ by up to 2.
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
        shape = np.broadcast_to(np.uint8(0), size)  # choosing a crop needs only the shape
        if isinstance(self.crop, T.RandomCrop):
            crop = self.crop.get_transform(shape)
        elif self.crop.single_category_max_area >= 1:
            crop = self.crop.get_transform(shape, None)
        else:
            crop = self.crop.get_transform(shape, resize.apply_segmentation(sem_seg))
        return ResizedCropTransform(resize, crop) if is_resized else crop


class ResizedCropTransform(Transform):
    """A resize followed by a crop, computed in one step."""

    def __init__(self, resize: T.ResizeTransform, crop: CropTransform):
        super().__init__()
        self._set_attributes(locals())

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        resize, crop = self.resize, self.crop
        rows, (top, bottom) = _crop_span(resize.h, resize.new_h, crop.y0, crop.h)
        columns, (left, right) = _crop_span(resize.w, resize.new_w, crop.x0, crop.w)
        box = left, top, right, bottom
        return resized(img[rows, columns], crop.h, crop.w, resize.interp, box)

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        rows = _nearest(self.resize.h, self.resize.new_h)[self.crop.y0 :][: self.crop.h]
        columns = _nearest(self.resize.w, self.resize.new_w)[self.crop.x0 :][: self.crop.w]
        return segmentation[rows][:, columns]

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return self.crop.apply_coords(self.resize.apply_coords(coords))

    def apply_polygons(self, polygons: list[np.ndarray]) -> list[np.ndarray]:
        return self.crop.apply_polygons(self.resize.apply_polygons(polygons))


def _crop_span(old: int, new: int, start: int, length: int) -> tuple[slice, tuple[float, float]]:
    """
    Return the slice of source pixels that a crop needs, on an axis resized from ``old`` to ``new``.

    Also return the crop's start and end, in fractional pixels from the start of the slice.
    """
    scale = old / new
    first, last = start * scale, min((start + length) * scale, old)
    margin = SUPPORT * max(scale, 1) + 1
    low, high = max(0, math.floor(first - margin)), min(old, math.ceil(last + margin))
    return slice(low, high), (first - low, last - low)


def _nearest(old: int, new: int) -> np.ndarray:
    """Return the index of the source pixel that Pillow copies to each resized pixel on an axis."""
    places = Image.fromarray(np.arange(old, dtype=np.int32)[None])
    return np.asarray(places.resize((new, 1), Image.Resampling.NEAREST))[0]


def turns(inputs: CfgNode) -> list[T.Augmentation]:
    """Return [RandomTurn()] if INPUT.RANDOM_ROTATE_90 is True, else []."""
    return [RandomTurn()] if inputs.RANDOM_ROTATE_90 else []


def mirrors(inputs: CfgNode, flip_pairs: Sequence[tuple[int, int]] = ()) -> list[T.Augmentation]:
    """
    Return the flips that INPUT.RANDOM_FLIP names, each with probability 0.5.

    Horizontal and vertical flips both swap the two labels of each pair in ``flip_pairs``, because a
    vertical flip equals a horizontal flip followed by a rotation by 180 degrees.
    """
    ways = {"both": ["horizontal", "vertical"], "none": []}
    return [
        RandomMirror(flip_pairs, vertical=way == "vertical")
        for way in ways.get(inputs.RANDOM_FLIP, [inputs.RANDOM_FLIP])
    ]


def colours(inputs: CfgNode) -> list[T.Augmentation]:
    """
    Return random changes of brightness, contrast and saturation, or [] if INPUT.COLOR_JITTER is 0.

    Each change has a random factor between 1 - INPUT.COLOR_JITTER and 1 + INPUT.COLOR_JITTER.
    """
    if not (jitter := inputs.COLOR_JITTER):
        return []
    if inputs.CHANNELS != COLOURS:
        raise UserError(
            f"INPUT.COLOR_JITTER is {jitter}, but INPUT.CHANNELS is {inputs.CHANNELS}. Colour "
            "jitter needs images with 3 channels, so set INPUT.COLOR_JITTER to 0."
        )
    kinds = T.RandomBrightness, T.RandomContrast, T.RandomSaturation
    return [kind(1 - jitter, 1 + jitter) for kind in kinds]


class RandomTurn(T.Augmentation):
    """Rotate by 0, 90, 180 or 270 degrees, each with the same probability."""

    def get_transform(self, image: np.ndarray) -> Transform:
        quarters = np.random.randint(4)  # noqa: NPY002, Detectron2 seeds it
        height, width = image.shape[:2]
        return TurnTransform(height, width, quarters)


class TurnTransform(Transform):
    """A counterclockwise rotation by ``quarters`` times 90 degrees, without resampling."""

    def __init__(self, height: int, width: int, quarters: int):
        super().__init__()
        self._set_attributes(locals())

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return np.rot90(img, self.quarters)

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        return np.rot90(segmentation, self.quarters)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        sides = self.height, self.width
        for quarter in range(self.quarters):
            width = sides[(quarter + 1) % 2]
            coords = np.stack([coords[:, 1], width - coords[:, 0]], axis=1)
        return coords


class RandomMirror(T.RandomFlip):
    """Flip with probability 0.5; a flip swaps the two labels of each pair in ``flip_pairs``."""

    def __init__(self, flip_pairs: Sequence[tuple[int, int]] = (), *, vertical: bool = False):
        super().__init__(horizontal=not vertical, vertical=vertical)
        self.flip_pairs = flip_pairs

    def get_transform(self, image: np.ndarray) -> Transform | T.TransformList:
        flip = super().get_transform(image)
        if not self.flip_pairs or isinstance(flip, T.NoOpTransform):
            return flip
        return T.TransformList([flip, SwapTransform(self.flip_pairs)])


class SwapTransform(T.NoOpTransform):
    """A transform that swaps the two labels of each pair and leaves the image unchanged."""

    def __init__(self, pairs: Sequence[tuple[int, int]]):
        super().__init__()
        self.pairs = pairs

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        table = np.arange(256, dtype=np.uint8)
        for a, b in self.pairs:
            table[[a, b]] = b, a
        return table[segmentation]
