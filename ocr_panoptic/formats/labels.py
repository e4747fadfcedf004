"""
Read and write label images, and map their raw labels to training labels.

A raw label is a number 0..65535, or a colour that :func:`color_label` encodes as a larger number.

Shape letters: H, W size of the image.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ocr_panoptic.errors import UserError

from .coco_panoptic import VOID_LABEL, label_of_segments, read_segment_ids
from .files import printable, replacing
from .near_labels import CLOSEST, nearest_of_two
from .pictures import Color, color_codes, load_labels, lossy_fault
from .segment_runs import SegmentRuns

MAX_NUMBER = 65535  # largest raw label that is not a colour
COLOURED = 1 << 24  # bit that is set in the raw label of a colour
ROUNDING = 4  # largest difference that JPEG makes in a flat area, except for black and white


def color_label(color: Sequence[int]) -> int:
    """Return the raw label that encodes a colour [R, G, B]."""
    return COLOURED | color[0] | color[1] << 8 | color[2] << 16


def label_text(label: int) -> str:
    """Return a raw label as text: its number, or [R, G, B] for a colour."""
    return str(_value(label) if label >= COLOURED else label)


def read_label_image(
    path: str | os.PathLike, known: Mapping[int, int] | None = None, kind: str = "label image"
) -> np.ndarray:
    """
    Read the raw labels of an image file: unsigned integers [H, W], uint32 for colours.

    An image with one channel is read as numbers. An image with several channels, or a GIF, is read
    as colours, or as numbers if its channels are equal. An image with a palette is read as colours
    if all of them are known, because paint programs and optimizers sort palettes, else as palette
    indices. If ``known`` lacks a label that is read in this way, the other reading (colours or
    numbers) is tried. In a two-class JPEG file, and in a mask of 0 and 255 with smoothed borders,
    each pixel gets the nearer label.

    Args:
        known: mapping whose keys are the data set's raw labels; by default, all numbers are known.
        kind: description of the file in messages.
    """
    return decoded_labels(load_labels(path, kind, allow_jpeg=True), path, known)[0]


def decoded_labels(
    image: Image.Image, path: str | os.PathLike, known: Mapping[int, int] | None
) -> tuple[np.ndarray, bool]:
    """Return the raw labels of an opened image, and whether inexact pixels were corrected."""
    is_lossy = image.format == "JPEG"
    used: set[int] = set()
    if not is_lossy:
        numbers, fault = _numbers(image)
        readings = [] if numbers is None else [numbers]
        if known is not None and max(known, default=0) >= COLOURED:
            # Then colours are tried first.
            likelier = len(image.getbands()) > 1 or bool(palette_entries(image))
            readings.insert(0 if likelier else 1, color_codes(image) | COLOURED)
        if not readings:
            raise UserError(f"{printable(path)}: {fault or _colours_fault(image)}")
        if known is None:
            return readings[0], False
        contents = []
        for labels in readings:
            contents.append(label_areas(labels).keys())
            if contents[-1] <= known.keys():
                return labels, False
        used = contents[0] & known.keys()
    # Largest pixel value that a class number 1, 2, ... may have after JPEG's rounding.
    highest = max((label + ROUNDING for label in known or () if 0 < label < CLOSEST), default=0)
    for meant in _pairs_meant(known or {}, is_lossy):
        if not used <= set(meant[:2]):
            continue  # the image also shows other labels of the data set
        values = [_value(label) for label in meant]
        places = nearest_of_two(image, values, highest)
        if places is not None:
            return look_up(np.array(meant, np.min_scalar_type(max(meant))), places), True
    if is_lossy:
        raise UserError(
            f"{lossy_fault(path, 'label image', 'JPEG')} A JPEG works only with two labels "
            f"whose grey values or colours differ by at least {CLOSEST}."
        )
    return readings[0], False


def _pairs_meant(known: Mapping[int, int], is_lossy: bool) -> Iterator[list[int]]:
    """Yield the two raw labels that a mask may contain, then ignored labels, for each choice."""
    labels = sorted(known, key=lambda label: (known[label] == VOID_LABEL, label))
    colours = [label for label in labels if label >= COLOURED]
    numbers = [label for label in labels if label < 256]
    for listed in (colours, numbers):
        if is_lossy and sum(known[label] != VOID_LABEL for label in listed) == 2:
            yield listed
    if numbers and {*numbers} <= {0, 1, 255}:  # a binary data set
        yield [0, 255]


def _value(label: int) -> list[int]:
    return [label & 255, label >> 8 & 255, label >> 16 & 255] if label >= COLOURED else [label]


def colours_of(image: Image.Image) -> list[Color]:
    """
    Return the colours of an opened label image, most frequent first.

    The list is empty if pixel values are class numbers, or if there are more than 256 colours.
    """
    return _colours(image) if _numbers(image)[0] is None else []


def palette_entries(image: Image.Image) -> dict[Color, int]:
    """
    Return the palette index of each colour that an image shows.

    The dict is empty if the image has no palette, or if the palette repeats a colour.
    """
    if image.mode != "P":
        return {}
    used: Any = [index for _, index in image.getcolors() or []]
    colours = [tuple(c) for c in np.reshape(image.getpalette() or [], (-1, 3)).tolist()]
    colours = colours[: max(used) + 1]  # unused entries at the end are often black
    if len(colours) <= max(used) or any(colours.count(colours[index]) > 1 for index in used):
        return {}
    return {colours[index]: index for index in used}


def _colours(image: Image.Image) -> list[Color]:
    counts: Any = image.convert("RGB").getcolors()  # None for more than 256
    return [color for _, color in sorted(counts or [], reverse=True)]


def _colours_fault(image: Image.Image) -> str:
    shown = ", ".join(str([*color]) for color in _colours(image)[:8])
    return (
        f"has {f'the colours {shown}' if shown else 'more than 256 colours'}, but the classes "
        "have no colours. Give each class a color (or labels: [[R, G, B], ...]) in the data file. "
        "Or is this a panoptic PNG or a photo?"
    )


def _numbers(image: Image.Image) -> tuple[np.ndarray | None, str]:
    """Return (class numbers [H, W] or None, error message or "") for an image."""
    if image.mode == "P" and image.format == "GIF":
        image = image.convert("RGB")
    pixels = np.asarray(image)
    if pixels.ndim == 3:
        colours = pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., :1]
        opacity = pixels[..., colours.shape[2] :]
        if any((colours[..., 0] != colours[..., k]).any() for k in range(1, colours.shape[2])):
            return None, ""  # colours, which need not be an error
        if (opacity != opacity[:1, :1]).any() and (opacity != colours[..., :1]).any():
            return None, "has grey values and transparency. Export only the channel with labels."
        pixels = colours[..., 0]
    if pixels.dtype == bool:
        return pixels.astype(np.uint8), ""
    if pixels.dtype != np.uint8:  # 32-bit integers, floats, or another byte order
        with np.errstate(invalid="ignore"):
            whole = pixels.astype(np.uint16)
        if (others := pixels[whole != pixels]).size:
            return None, f"has the value {others[0]}, expected integers 0..{MAX_NUMBER}."
        return whole, ""
    return pixels, ""


def write_label_png(path: str | os.PathLike, labels: np.ndarray) -> None:
    """Write labels, uint8 or uint16 [H, W], to a PNG atomically; create missing folders."""
    if labels.ndim != 2 or labels.dtype not in (np.uint8, np.uint16):
        given = f"{labels.dtype} {list(labels.shape)}"
        raise UserError(f"{path}: expected uint8 or uint16 labels [H, W], found {given}")
    with replacing(Path(path)) as temporary:
        Image.fromarray(labels).save(temporary, format="PNG")


def read_labels(
    path: str | os.PathLike, label_map: Mapping[int, int] | None, kind: str = "label image"
) -> np.ndarray:
    """
    Read a label image, and return its training labels, unsigned integers [H, W].

    ``kind`` describes the file in messages.
    """
    labels = read_label_image(path, label_map, kind)
    try:
        return apply_label_map(labels, label_map)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def apply_label_map(raw: np.ndarray, label_map: Mapping[int, int] | None) -> np.ndarray:
    """
    Convert raw labels to training labels; raise UserError if the label map lacks a raw label.

    Args:
        raw: unsigned integers [H, W].
        label_map: dict from raw labels to training labels, all >= 0; if None, return ``raw``.

    Returns:
        unsigned integers [H, W], of the smallest dtype that holds every training label.
    """
    if label_map is None:
        return raw
    if raw.dtype == np.uint32:  # colours, whose table would be too large
        runs = SegmentRuns(raw)
        if not set(runs.ids.tolist()) <= label_map.keys():
            check_known(label_areas(raw), label_map)
        return runs.labels(label_map, VOID_LABEL)
    pixels = pixel_counts(raw)
    numbers = np.flatnonzero(pixels).tolist()
    if not label_map.keys() >= set(numbers):
        check_known({label: int(pixels[label]) for label in numbers}, label_map)
    table = np.zeros(max(len(pixels), 1), dtype=np.min_scalar_type(max(label_map.values())))
    for label in numbers:
        table[label] = label_map[label]
    return look_up(table, raw)


def check_known(areas: Mapping[int, int], label_map: Mapping[int, int]) -> None:
    """Raise UserError if ``label_map`` lacks a label in ``areas`` (pixel count of each label)."""
    foreign = [label for label in areas if label not in label_map]
    if foreign:
        listed = ", ".join(f"{label_text(n)} ({areas[n]} pixels)" for n in foreign[:10])
        listed += ", ..." if len(foreign) > 10 else ""
        hint = "In the data file, add each to a class or to ignore. Or is this the wrong file?"
        if len(foreign) > 20:
            hint = "If the borders are smoothed (antialiased, resized), save without smoothing."
        raise UserError(
            f"found labels that belong to no class: {listed}; expected {_ranges(label_map)}. {hint}"
        )


def label_areas(raw: np.ndarray) -> dict[int, int]:
    """Return the number of pixels of each raw label in a map [H, W]."""
    if raw.dtype == np.uint32:
        flat = raw.ravel()
        starts = np.flatnonzero(np.diff(flat, prepend=flat[:1] ^ 1))
        labels, place = np.unique(flat[starts], return_inverse=True)
        pixels = np.bincount(place, np.diff(starts, append=flat.size), len(labels))
        return dict(zip(labels.tolist(), pixels.astype(int).tolist(), strict=True))
    pixels = pixel_counts(raw)
    return {label: int(pixels[label]) for label in np.flatnonzero(pixels).tolist()}


def look_up(table: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return ``table[labels]``, computed faster than by NumPy if both arrays are uint8."""
    if not labels.dtype == table.dtype == np.uint8:
        return table[labels]
    whole = [*table.tolist(), *[0] * (256 - len(table))]
    return np.asarray(Image.fromarray(labels).point(whole))


def pixel_counts(labels: np.ndarray) -> np.ndarray:
    """Return the pixel count of each label in a map: [256] for uint8, else [largest label + 1]."""
    if labels.dtype == np.uint8:  # Pillow takes a fifth of NumPy's time
        return np.array(Image.fromarray(labels).histogram())
    return np.bincount(labels.reshape(-1))


def _ranges(labels: Iterable[int]) -> str:
    """Return labels as text with ranges, such as "0..8, 255"."""
    ordered = sorted(label for label in labels if label < COLOURED)
    colours = [label_text(label) for label in sorted(labels) if label >= COLOURED]
    runs = groupby(enumerate(ordered), lambda entry: entry[1] - entry[0])
    ends = [[label for _, label in run] for _, run in runs]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in ends]
    return ", ".join([*shown, *colours[:20], *(["..."] if len(colours) > 20 else [])])


def has_labels(record: Mapping) -> bool:
    """Return whether a Detectron2 record names a label PNG or a panoptic PNG."""
    return "sem_seg_file_name" in record or "pan_seg_file_name" in record


def read_true_labels(record: Mapping, label_map: Mapping[int, int] | None = None) -> np.ndarray:
    """
    Read the ground truth of a record as training labels, uint8 or uint16 [H, W].

    Args:
        record: Detectron2 record that names a label image or, for Panoptic-FPN, a panoptic PNG.
        label_map: label map of the label image; if None, its raw labels are returned.
    """
    if "sem_seg_file_name" in record:
        return read_labels(record["sem_seg_file_name"], label_map)
    runs = SegmentRuns(read_segment_ids(record))
    return runs.labels(label_of_segments(record["segments_info"]), VOID_LABEL)
