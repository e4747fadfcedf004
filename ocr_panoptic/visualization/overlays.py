"""Segments and heat maps as colours over an image. Shape letters: H, W size of a picture."""

import colorsys
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from PIL import Image

from ocr_panoptic.formats.pictures import Color

VOID_COLOR: Color = (128, 128, 128)
OUTLINE_COLOR: Color = (255, 255, 255)
# Shown range of a heat map, in powers of ten.
HEAT_DECADES = 3
# Added to the HLS lightness of a class's colour for its 1st, 2nd, ... instance, in turn.
INSTANCE_LIGHTNESS = (0.0, 0.14, -0.12, 0.24, -0.2, 0.07, -0.06)


def instance_color(color: Color, index: int) -> Color:
    """The colour of the ``index``-th instance of a class: its hue at another lightness."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(c / 255 for c in color))
    lightness += INSTANCE_LIGHTNESS[index % len(INSTANCE_LIGHTNESS)]
    rgb = colorsys.hls_to_rgb(hue, min(max(lightness, 0.12), 0.9), saturation)
    return tuple(round(255 * c) for c in rgb)


def resize_picture(image: np.ndarray, height: int, width: int, smooth: bool) -> np.ndarray:
    """
    Args:
        image: uint8 or int32 [H,W] or uint8 [H,W,3].
        smooth: bicubic (pictures) or nearest (ids).
    """
    resample = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(image).resize((width, height), resample))


def outlines(ids: np.ndarray) -> np.ndarray:
    """
    Args:
        ids: int [H,W].

    Returns:
        bool [H,W]: the pixels whose lower or right neighbour has another id.
    """
    edges = np.zeros(ids.shape, dtype=bool)
    edges[:, :-1] |= ids[:, :-1] != ids[:, 1:]
    edges[:-1] |= ids[:-1] != ids[1:]
    return edges


def draw_segments(
    image: np.ndarray, ids: np.ndarray, colors: Mapping[int, Color], opacity: float = 0.72
) -> np.ndarray:
    """
    Args:
        image: uint8 [H,W,3] RGB.
        ids: int [H,W].
        colors: the colour of each id; other ids are void and grey.

    Returns:
        uint8 [H,W,3] RGB: the image in grey under the colours, outlined.
    """
    found, inverse = np.unique(ids, return_inverse=True)
    palette = np.array([colors.get(int(i), VOID_COLOR) for i in found], dtype=np.float32)
    grey = image.astype(np.float32).mean(axis=2, keepdims=True)
    blended = opacity * palette[inverse.reshape(ids.shape)] + (1 - opacity) * grey
    picture = blended.round().astype(np.uint8)
    picture[outlines(ids)] = OUTLINE_COLOR
    return picture


def segment_colors(
    info: Sequence[Mapping], thing_colors: Sequence[Color], stuff_colors: Sequence[Color]
) -> dict[int, Color]:
    """
    Args:
        info: segments with "id", "isthing" and the contiguous "category_id".

    Returns:
        a colour for each segment id; instances of one class differ in lightness.
    """
    colors: dict[int, Color] = {}
    seen: dict[int, int] = {}
    for segment in info:
        category = segment["category_id"]
        if segment["isthing"]:
            index = seen.get(category, 0)
            seen[category] = index + 1
            colors[segment["id"]] = instance_color(tuple(thing_colors[category]), index)
        else:
            colors[segment["id"]] = tuple(stuff_colors[category])
    return colors


def heat_map(weights: np.ndarray, image: np.ndarray, logarithmic: bool = True) -> np.ndarray:
    """
    Weights in matplotlib's "inferno", by default on a logarithmic scale: a softmax over thousands
    of pixels is so peaked that a linear one shows little more than its maximum.

    Args:
        weights: float [h,w], not negative, the largest positive.
        image: uint8 [H,W,3] RGB.
        logarithmic: False for weights from 0 to 1 as they are.

    Returns:
        uint8 [H,W,3] RGB: the brightest colour for the largest weight (or 1), the darkest for those
        below it by HEAT_DECADES powers of ten and more (or 0); a trace of the image lies beneath.
    """
    height, width = image.shape[:2]
    scaled = weights
    if logarithmic:
        lowest = 10.0**-HEAT_DECADES
        scaled = 1 + np.log10(np.maximum(weights / weights.max(), lowest)) / HEAT_DECADES
    scaled = resize_picture((255 * scaled).round().astype(np.uint8), height, width, smooth=True)
    heat = 255 * matplotlib.colormaps["inferno"](scaled)[..., :3]
    grey = image.astype(np.float32).mean(axis=2, keepdims=True)
    return (0.86 * heat + 0.14 * grey).round().astype(np.uint8)
