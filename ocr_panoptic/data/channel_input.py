"""Augmentation of images of any number of channels, and of floats.

Detectron2 hands images to Pillow whole: of four channels the last one is taken for opacity, by
which the others are weighted in a resize; five are none. Floats it resizes without antialiasing.

Shape letters: H, W size of the image, C channels.
"""

import numpy as np
from detectron2.data import transforms as T
from fvcore.transforms.transform import Transform
from PIL import Image

from ocr_panoptic.formats.pictures import COLOURS


class ChannelInput(T.AugInput):
    """Detectron2's ``AugInput``, whose image is uint8 or float32 [H, W, C]. Each channel is resized
    by itself, in Pillow's arithmetic."""

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
    Args:
        image: uint8 or float32 [H, W, C].
        interpolation: of Pillow.
        box: left, top, right and bottom of the part that is wanted, in pixels; by default all.

    Returns:
        of the same type, [height, width, C].
    """
    if image.dtype == np.uint8 and image.shape[2] == COLOURS:
        order = -1 if image.strides[2] < 0 else 1  # BGR is a view of RGB, which is no copy
        colours = Image.fromarray(np.ascontiguousarray(image[:, :, ::order]))
        return np.asarray(colours.resize((width, height), interpolation, box))[:, :, ::order]
    channels = [
        Image.fromarray(np.ascontiguousarray(channel)).resize((width, height), interpolation, box)
        for channel in image.transpose(2, 0, 1)
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=2)
