"""Classes of panoptic and semantic data: ids, names and colours."""

import colorsys
import re
from collections.abc import Iterator
from typing import TypeGuard

from ocr_panoptic.formats.coco_panoptic import VOID_LABEL as VOID_LABEL
from ocr_panoptic.formats.pictures import Color

_MAX_ID = 2**63 - 1  # the largest int64

# Latin-1 control characters, Unicode line separators and text-direction marks, and surrogates for
# bytes that are not UTF-8. str.isprintable would also refuse characters that some scripts need.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_id(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is a valid id: an integer from 0 to 2**63 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_ID


def has_controls(text: str) -> bool:
    """Return whether a text has control characters, text-direction marks or undecodable bytes."""
    return _CONTROLS.search(text) is not None


def is_color(value: object) -> TypeGuard[list[int]]:
    """Return whether a JSON value is a colour: three integers 0..255."""
    return isinstance(value, list) and len(value) == 3 and all(is_id(c) and c <= 255 for c in value)


def faults_of_class(name: object, color: object) -> Iterator[str]:
    """Yield a message for each fault in the name and colour of a class, read from JSON or YAML."""
    if not isinstance(name, str) or not name:
        # YAML reads a bare ``no``, ``on`` or ``12`` as a boolean or a number.
        fix = "Put the name in quotes." if name not in (None, "") else "Give each class a name."
        yield f"the name must be a non-empty string, found {name!r}. {fix}"
    elif has_controls(name):
        yield f"the name must not contain control characters, found {name!r}."
    if not is_color(color):
        yield f"color must be three integers 0..255, such as [255, 0, 0]; found {color!r}."


def derived_color(place: int) -> Color:
    """Return the default colour of class number ``place``."""
    hue = place * 0.618033988749895 % 1.0
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.65, 0.95 - 0.3 * (place % 3) / 2)
    return round(255 * red), round(255 * green), round(255 * blue)


def derived_colors(num_classes: int) -> tuple[Color, ...]:
    """Return default colours for the classes of a data set that defines no colours."""
    return tuple(derived_color(place) for place in range(num_classes))
