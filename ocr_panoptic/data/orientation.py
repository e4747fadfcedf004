"""
Augmentations for images without an upright direction, and for changing light.

Shape letters: H, W size of the image, C channels.
"""

from collections.abc import Sequence

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import transforms as T
from fvcore.transforms.transform import HFlipTransform, Transform, VFlipTransform

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import COLOURS


def turns(inputs: CfgNode) -> list[T.Augmentation]:
    """Return the turns of INPUT.RANDOM_ROTATE_90, which stand before a resize."""
    return [RandomTurn()] if inputs.RANDOM_ROTATE_90 else []


def mirrors(inputs: CfgNode, flip_pairs: Sequence[tuple[int, int]] = ()) -> list[T.Augmentation]:
    """
    Return the flips of INPUT.RANDOM_FLIP, each with probability 0.5.

    Args:
        flip_pairs: labels that change places in a mirrored image. Both flips mirror the image: a
            vertical flip equals a horizontal flip and half a turn.
    """
    ways = {"both": ["horizontal", "vertical"], "none": []}
    return [
        RandomMirror(flip_pairs, vertical=way == "vertical")
        for way in ways.get(inputs.RANDOM_FLIP, [inputs.RANDOM_FLIP])
    ]


def colours(inputs: CfgNode) -> list[T.Augmentation]:
    """Return Detectron2's changes of brightness, contrast and saturation for INPUT.COLOR_JITTER."""
    if not (jitter := inputs.COLOR_JITTER):
        return []
    if inputs.CHANNELS != COLOURS:
        raise UserError(
            f"INPUT.COLOR_JITTER is {jitter}, and INPUT.CHANNELS {inputs.CHANNELS}; it is for "
            "images of three colours, so set it to 0."
        )
    kinds = T.RandomBrightness, T.RandomContrast, T.RandomSaturation
    return [kind(1 - jitter, 1 + jitter) for kind in kinds]


class RandomTurn(T.Augmentation):
    """Turn by 0, 90, 180 or 270 degrees, with equal chances."""

    def get_transform(self, image: np.ndarray) -> Transform:
        quarters = np.random.randint(4)  # noqa: NPY002, Detectron2 seeds it
        height, width = image.shape[:2]
        return TurnTransform(height, width, quarters)


class TurnTransform(Transform):
    """A turn by quarters of a circle, counterclockwise, which does not resample anything."""

    def __init__(self, height: int, width: int, quarters: int):
        super().__init__()
        self._set_attributes(locals())

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        """Return the turned image [H, W] or [H, W, C]."""
        return np.rot90(img, self.quarters)

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        return np.rot90(segmentation, self.quarters)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        """Return the turned points x, y [N, 2] of an image of size H, W."""
        sides = self.height, self.width
        for quarter in range(self.quarters):
            width = sides[(quarter + 1) % 2]
            coords = np.stack([coords[:, 1], width - coords[:, 0]], axis=1)
        return coords


class RandomMirror(T.RandomFlip):
    """Detectron2's flip with probability 0.5, which also swaps pairs of labels."""

    def __init__(self, flip_pairs: Sequence[tuple[int, int]] = (), *, vertical: bool = False):
        super().__init__(horizontal=not vertical, vertical=vertical)
        self.flip_pairs = flip_pairs

    def get_transform(self, image: np.ndarray) -> Transform:
        flip = super().get_transform(image)
        if isinstance(flip, HFlipTransform):
            return MirrorTransform(flip.width, self.flip_pairs)
        if isinstance(flip, VFlipTransform):
            return VerticalMirrorTransform(flip.height, self.flip_pairs)
        return flip


class MirrorTransform(HFlipTransform):
    """A horizontal flip that swaps the labels of each pair."""

    def __init__(self, width: int, flip_pairs: Sequence[tuple[int, int]]):
        super().__init__(width)
        self.flip_pairs = flip_pairs

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        """Return the flipped labels, uint8 [H, W]."""
        return swapped(self.apply_image(segmentation), self.flip_pairs)


class VerticalMirrorTransform(VFlipTransform):
    """A vertical flip that swaps the labels of each pair."""

    def __init__(self, height: int, flip_pairs: Sequence[tuple[int, int]]):
        super().__init__(height)
        self.flip_pairs = flip_pairs

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        """Return the flipped labels, uint8 [H, W]."""
        return swapped(self.apply_image(segmentation), self.flip_pairs)


def swapped(labels: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return labels with the two labels of each pair swapped; they must be uint8 for pairs."""
    if not pairs:
        return labels
    table = np.arange(256, dtype=np.uint8)
    for a, b in pairs:
        table[[a, b]] = b, a
    return table[labels]
