"""
Draws segments and heat maps as colours over an image.

Shape letters: H, W size of a picture.
"""

import colorsys
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from PIL import Image

from ocr_panoptic.formats.pictures import Color

Colors = Sequence[Color] | Mapping[int, Color]  # colour of each class

VOID_COLOR: Color = (128, 128, 128)
OUTLINE_COLOR: Color = (255, 255, 255)
# Range of weights that a heat map shows, in powers of ten.
HEAT_DECADES = 3
# Changes in HLS lightness for the 1st, 2nd, ... instance of a class, repeated cyclically.
INSTANCE_LIGHTNESS = (0.0, 0.14, -0.12, 0.24, -0.2, 0.07, -0.06)


def instance_color(color: Color, index: int) -> Color:
    """Return a class colour, lightened or darkened according to an instance index (from 0)."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(c / 255 for c in color))
    lightness += INSTANCE_LIGHTNESS[index % len(INSTANCE_LIGHTNESS)]
    red, green, blue = colorsys.hls_to_rgb(hue, min(max(lightness, 0.12), 0.9), saturation)
    return round(255 * red), round(255 * green), round(255 * blue)


def resize_picture(image: np.ndarray, height: int, width: int, smooth: bool) -> np.ndarray:
    """
    Return a picture or a map of ids, resized to the given height and width.

    Args:
        image: picture, uint8 [H,W] or [H,W,3], or ids, uint8 or int32 [H,W].
        smooth: whether to interpolate bicubically (pictures) or take the nearest pixel (ids).
    """
    resample = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(image).resize((width, height), resample))


def draw_segments(
    image: np.ndarray, ids: np.ndarray, colors: Mapping[int, Color], opacity: float = 0.72
) -> np.ndarray:
    """
    Draw outlined, coloured segments over a grey copy of the image; return uint8 [H,W,3] RGB.

    Args:
        image: picture, uint8 [H,W,3] RGB.
        ids: segment id of each pixel, int [H,W].
        colors: colour of each segment id; pixels of other ids are void and become grey.
    """
    found, inverse = np.unique(ids, return_inverse=True)
    palette = np.array([colors.get(int(i), VOID_COLOR) for i in found], dtype=np.float32)
    grey = image.astype(np.float32).mean(axis=2, keepdims=True)
    blended = opacity * palette[inverse.reshape(ids.shape)] + (1 - opacity) * grey
    picture = blended.round().astype(np.uint8)
    picture[:, :-1][ids[:, :-1] != ids[:, 1:]] = OUTLINE_COLOR
    picture[:-1][ids[:-1] != ids[1:]] = OUTLINE_COLOR
    return picture


def segment_colors(
    info: Sequence[Mapping], thing_colors: Colors, stuff_colors: Colors
) -> dict[int, Color]:
    """
    Return a colour for each segment id; instances of the same class differ in lightness.

    Args:
        info: segments with "id", "isthing" and the contiguous "category_id".
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


def heat_map(weights: np.ndarray, image: np.ndarray) -> np.ndarray:
    """
    Return a heat map of weights over a faint copy of the image, with colours on a log scale.

    Args:
        weights: weights at any resolution, float [h,w]; not negative, and not all 0.
        image: picture, uint8 [H,W,3] RGB.

    Returns:
        picture, uint8 [H,W,3] RGB, in matplotlib's "inferno": the brightest colour for the largest
        weight, the darkest for weights up to 10**-HEAT_DECADES times the largest
    """
    # A softmax over thousands of pixels is so peaked that a linear scale would show only its peak.
    height, width = image.shape[:2]
    lowest = 10.0**-HEAT_DECADES
    scaled = 1 + np.log10(np.maximum(weights / weights.max(), lowest)) / HEAT_DECADES
    scaled = resize_picture((255 * scaled).round().astype(np.uint8), height, width, smooth=True)
    heat = 255 * matplotlib.colormaps["inferno"](scaled)[..., :3]
    grey = image.astype(np.float32).mean(axis=2, keepdims=True)
    return (0.86 * heat + 0.14 * grey).round().astype(np.uint8)
