"""Augmentation of images of any number of channels, and of floats.

Detectron2 hands images to Pillow whole: of four channels the last one is taken for opacity, by
which the others are weighted in a resize; five are none. Floats it resizes without antialiasing.

Shape letters: H, W size of the image, C channels.
"""

import numpy as np
from detectron2.data import transforms as T
from fvcore.transforms.transform import BlendTransform, Transform
from PIL import Image

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import COLOURS


class ChannelInput(T.AugInput):
    """Detectron2's ``AugInput``, whose image is uint8 or float32 [H, W, C]. Each channel is resized
    by itself, in Pillow's arithmetic; what changes colours leaves all channels but the first three
    alone."""

    def transform(self, tfm: Transform) -> None:
        """
        Raises:
            ValueError: colours are to be changed in an image that is not of 8 bits.
        """
        if self.image.dtype == np.uint8 and self.image.shape[2] == COLOURS:
            return super().transform(tfm)
        if isinstance(tfm, T.ResizeTransform):
            self.image = resized(self.image, tfm.new_h, tfm.new_w, tfm.interp)
        elif isinstance(tfm, BlendTransform):
            self.image = _blended(self.image, tfm)
        else:
            self.image = tfm.apply_image(self.image)
        if self.sem_seg is not None:
            self.sem_seg = tfm.apply_segmentation(self.sem_seg)
        return None


def resized(image: np.ndarray, height: int, width: int, interpolation: int) -> np.ndarray:
    """
    Args:
        image: uint8 or float32 [H, W, C].
        interpolation: of Pillow.

    Returns:
        of the same type, [height, width, C].
    """
    channels = [
        Image.fromarray(np.ascontiguousarray(channel)).resize((width, height), interpolation)
        for channel in image.transpose(2, 0, 1)
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=2)


def _blended(image: np.ndarray, tfm: BlendTransform) -> np.ndarray:
    if image.dtype != np.uint8:
        raise UserError(
            "INPUT.BRIGHTNESS_SHIFT is in steps of 1 of 255, and the image is of other numbers; "
            "set it to 0."
        )
    colours = tfm.apply_image(image[:, :, :COLOURS])
    return np.concatenate([colours, image[:, :, COLOURS:]], axis=2)
