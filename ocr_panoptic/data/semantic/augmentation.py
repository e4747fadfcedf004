"""
Augment images and labels for semantic segmentation.

Labels are resized by nearest neighbour. Images are downscaled with antialiasing; OCR's published
code uses OpenCV, which does not antialias.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import transforms as T
from fvcore.transforms.transform import Transform
from PIL import Image

from ocr_panoptic.data.image_input import ResizedCrop, colours, mirrors, turns
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import COLOURS

INTERPOLATIONS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def build_semantic_augmentation(
    cfg: CfgNode, is_train: bool, flip_pairs: Sequence[tuple[int, int]] = ()
) -> list[T.Augmentation]:
    """
    Return the augmentations that ``cfg.INPUT`` describes.

    Training images are rotated, resized, rescaled at random, cropped, flipped, changed in colour,
    and padded to the crop size. A flip swaps the two labels of each pair in ``flip_pairs``. Test
    images are only resized.
    """
    _check(cfg.INPUT)
    if not is_train:
        return _resizing(cfg.INPUT, is_train)
    *others, last = _resizing(cfg.INPUT, is_train)
    crop = _cropping(cfg)
    last = [ResizedCrop(last, *crop)] if crop else [last]
    return [*turns(cfg.INPUT), *others, *last, *mirrors(cfg.INPUT, flip_pairs), *_finish(cfg)]


def build_offset_augmentation(cfg: CfgNode, truth: T.Transform) -> list[T.Augmentation]:
    """
    Return training augmentations that include ``truth``, which turns labels into SegFix targets.

    Images are rotated, resized and flipped before ``truth``, because these steps change distances
    and directions. They are cropped after ``truth``, because labels outside a crop affect the
    targets inside.
    """
    inputs = cfg.INPUT
    _check(inputs)
    before = [*turns(inputs), *_resizing(inputs, True), *mirrors(inputs)]
    return [*before, truth, *_cropping(cfg), *_finish(cfg)]


def _resizing(inputs: CfgNode, is_train: bool) -> list[T.Augmentation]:
    interpolation = INTERPOLATIONS[inputs.INTERPOLATION]
    if inputs.FIXED_SIZE:
        resize = T.Resize(tuple(inputs.FIXED_SIZE), interpolation)
    else:  # with a size of 0, images keep their size
        sizes = inputs.MIN_SIZE_TEST, inputs.MAX_SIZE_TEST, "choice"
        if is_train:
            sizes = inputs.MIN_SIZE_TRAIN, inputs.MAX_SIZE_TRAIN, inputs.MIN_SIZE_TRAIN_SAMPLING
        resize = T.ResizeShortestEdge(*sizes, interpolation)
    if is_train and (list(inputs.RANDOM_SCALE), list(inputs.RANDOM_ASPECT)) != ([1, 1], [1, 1]):
        return [resize, RandomScaleAspect(inputs.RANDOM_SCALE, inputs.RANDOM_ASPECT, interpolation)]
    return [resize]


def _cropping(cfg: CfgNode) -> list[T.Augmentation]:
    crop = cfg.INPUT.CROP
    if not crop.ENABLED:
        return []
    ignore_value = cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE
    return [
        T.RandomCrop_CategoryAreaConstraint(
            "absolute", tuple(crop.SIZE), crop.SINGLE_CATEGORY_MAX_AREA, ignore_value
        )
    ]


def _finish(cfg: CfgNode) -> list[T.Augmentation]:
    augmentations = colours(cfg.INPUT)
    if cfg.INPUT.BRIGHTNESS_SHIFT:
        augmentations.append(RandomBrightnessShift(cfg.INPUT.BRIGHTNESS_SHIFT))
    if cfg.INPUT.CROP.ENABLED:
        size, ignore_value = cfg.INPUT.CROP.SIZE, cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE
        augmentations.append(PadToSize(size, cfg.MODEL.PIXEL_MEAN, ignore_value))
    return augmentations


def _check(inputs: CfgNode) -> None:
    fixed, shift, crop = inputs.FIXED_SIZE, inputs.BRIGHTNESS_SHIFT, inputs.CROP
    limits = "[smallest, largest], both above 0"
    crop_type = '"absolute", with INPUT.CROP.SIZE set to [height, width] in pixels'
    colourless = f"0, because INPUT.CHANNELS is {inputs.CHANNELS}, and the shift needs RGB"
    for key, is_usable, expected in (
        ("FIXED_SIZE", not fixed or _is_size(fixed), "[height, width], or []"),
        ("INTERPOLATION", inputs.INTERPOLATION in INTERPOLATIONS, " or ".join(INTERPOLATIONS)),
        ("RANDOM_SCALE", _is_range(inputs.RANDOM_SCALE), limits),
        ("RANDOM_ASPECT", _is_range(inputs.RANDOM_ASPECT), limits),
        ("BRIGHTNESS_SHIFT", isinstance(shift, int) and 0 <= shift <= 255, "an integer 0..255"),
        ("BRIGHTNESS_SHIFT", not shift or inputs.CHANNELS >= COLOURS, colourless),
        ("CROP.TYPE", not crop.ENABLED or crop.TYPE == "absolute", crop_type),
        ("CROP.SIZE", not crop.ENABLED or _is_size(crop.SIZE), "[height, width] in pixels"),
    ):
        if not is_usable:
            value = reduce(getattr, key.split("."), inputs)
            raise UserError(f"INPUT.{key} is {value!r}; expected {expected}.")


def _is_size(value: Sequence) -> bool:
    return len(value) == 2 and all(isinstance(side, int) and side > 0 for side in value)


def _is_range(value: Sequence[float]) -> bool:
    return len(value) == 2 and 0 < value[0] <= value[1]


class RandomScaleAspect(T.Augmentation):
    """
    Resize by a random scale s, and change the aspect ratio by a random factor a.

    The width is multiplied by s * sqrt(a), the height by s / sqrt(a). Both s and a are drawn
    uniformly from their ranges.
    """

    def __init__(
        self,
        scale_range: Sequence[float],
        aspect_range: Sequence[float],
        interpolation: int = Image.Resampling.BICUBIC,
    ):
        super().__init__()
        self._init(locals())

    def get_transform(self, image: np.ndarray) -> Transform:
        height, width = image.shape[:2]
        scale = self._rand_range(*self.scale_range)
        stretch = math.sqrt(self._rand_range(*self.aspect_range))
        new_height = max(1, round(height * scale / stretch))
        new_width = max(1, round(width * scale * stretch))
        return T.ResizeTransform(height, width, new_height, new_width, self.interpolation)


class RandomBrightnessShift(T.Augmentation):
    """Add one random integer in -shift..shift to all colour values, and clip them to 0..255."""

    def __init__(self, shift: int):
        super().__init__()
        self._init(locals())

    def get_transform(self, image: np.ndarray) -> Transform:
        shift = np.random.randint(-self.shift, self.shift + 1)  # noqa: NPY002, Detectron2 seeds it
        return T.ColorTransform(partial(_shifted, shift=shift))


def _shifted(image: np.ndarray, shift: int) -> np.ndarray:
    """Return an image with ``shift`` added to its first three channels, clipped to 0..255."""
    shifted = image.copy(order="K")
    colours, size = shifted[:, :, :COLOURS], np.uint8(abs(shift))
    if shift >= 0:  # clip first, since uint8 sums wrap around at 256
        np.add(np.minimum(colours, 255 - size), size, out=colours)
    else:
        np.subtract(np.maximum(colours, size), size, out=colours)
    return shifted


class PadToSize(T.Augmentation):
    """
    Pad images that are smaller than ``size``, and their labels, at the bottom and on the right.

    Images are padded with the pixel mean, and labels with ``ignore_value``.
    """

    def __init__(self, size: Sequence[int], pixel_mean: Sequence[float], ignore_value: int):
        super().__init__()
        self._init(locals())

    def get_transform(self, image: np.ndarray) -> Transform:
        bottom, right = (max(0, to - has) for to, has in zip(self.size, image.shape[:2]))
        if not bottom and not right:
            return T.NoOpTransform()
        return MeanPadTransform(bottom, right, self.pixel_mean, self.ignore_value)


class MeanPadTransform(T.PadTransform):
    """A transform that pads each image channel with its pixel mean; images become float32."""

    def __init__(self, bottom: int, right: int, pixel_mean: Sequence[float], ignore_value: int):
        super().__init__(0, 0, right, bottom, seg_pad_value=ignore_value)
        self.pixel_mean = pixel_mean

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        height, width, channels = img.shape
        padded = np.empty((height + self.y1, width + self.x1, channels), np.float32)
        padded[:] = self.pixel_mean
        padded[:height, :width] = img
        return padded
