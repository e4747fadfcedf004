"""What classes are made of in both kinds of data: ids, colours, and the ignored label."""

import colorsys

VOID_LABEL = 255

Color = tuple[int, int, int]


def is_id(value: object) -> bool:
    """Whether a JSON value can be an id: an integer of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_color(value: object) -> bool:
    """Whether a JSON value is a colour: three integers 0..255."""
    return isinstance(value, list) and len(value) == 3 and all(is_id(c) and c <= 255 for c in value)


def derived_color(place: int) -> Color:
    """Hues a golden angle apart: neighbours in a list differ, and no colour comes twice."""
    hue = place * 0.618033988749895 % 1.0
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.65, 0.95 - 0.3 * (place % 3) / 2)
    return round(255 * red), round(255 * green), round(255 * blue)


def derived_colors(num_classes: int) -> tuple[Color, ...]:
    """Colours for a data set that comes without."""
    return tuple(derived_color(place) for place in range(num_classes))
