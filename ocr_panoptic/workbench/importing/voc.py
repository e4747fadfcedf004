"""
Reads Pascal VOC: a PNG of classes and a PNG of objects for each image.

The PNGs contain labels (palette indices as in VOC 2012, or a single channel) or colours. CVAT and
Datumaro write a ``labelmap.txt`` that lists the class of each colour, and labelme2voc writes a
``class_names.txt`` that lists the class of each label.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from pycocotools import mask as rle

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.published.tables import VOC_CLASSES
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.coco_panoptic import rgb2id
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.labels import palette_entries
from ocr_panoptic.formats.pictures import load_labels
from ocr_panoptic.formats.segment_runs import SegmentRuns

from .annotated_image import AnnotatedImage, Segment
from .reading import (
    Annotations,
    check_size,
    files_below,
    image_with_stem,
    read_lines,
    require_images,
)

_CLASSES = "SegmentationClass"
OBJECTS = "SegmentationObject"
_IMAGES = "JPEGImages"
LABEL_MAP = "labelmap.txt"
CLASS_NAMES = "class_names.txt"
BACKGROUND = "background"
_VOID = 255  # the border between objects


def read_voc(source: Path, images: Path | None = None) -> Annotations:
    """
    Return the annotated images of a VOC folder, or of an image list such as ``train.txt``.

    Each object becomes a segment, and the remaining pixels of each class become another segment.
    With a file of classes, objects can be things or stuff; otherwise they are things. Background
    and void (the border between objects) do not become segments. If the folder
    ``SegmentationObject`` exists, it must contain a PNG for each image.
    """
    if source.is_file():
        folder = source.parent.parent.parent
        names = list(filter(None, read_lines(source)))
    else:
        folder, classes = source, source / _CLASSES
        if not classes.is_dir():
            raise MissingFileError(
                f"{classes}: folder not found. Give the folder that contains {_CLASSES}."
            )
        files = files_below(classes, (".png",))
        names = [file.relative_to(classes).with_suffix("").as_posix() for file in files]
    folder_of_images = require_images(images or folder / _IMAGES, source)
    files_of_classes = (folder / name for name in (LABEL_MAP, CLASS_NAMES))
    classes_file = next((file for file in files_of_classes if file.exists()), None)
    by_index, by_color = _labels(classes_file)
    return Annotations(
        [(str(folder / _CLASSES / f"{name}.png"), name) for name in names],
        lambda name: image_with_stem(folder_of_images, [name]),
        partial(
            _read_image,
            folder=folder,
            classes_file=classes_file,
            by_index=by_index,
            by_color=by_color,
        ),
    )


def _read_image(
    image: AnnotatedImage,
    name: str,
    folder: Path,
    classes_file: Path | None,
    by_index: Mapping[int, str],
    by_color: Mapping[int, str],
) -> AnnotatedImage:
    path = folder / _CLASSES / f"{name}.png"
    has_map = classes_file is not None and classes_file.name == LABEL_MAP
    classes, is_color = _values(path, in_colors=has_map)
    check_size(image, *classes.shape)
    meaning = {_VOID_COLOR: "", **by_color} if is_color else {_VOID: "", **by_index}
    objects, void = np.zeros_like(classes), _VOID
    if (folder / OBJECTS).is_dir():
        objects, objects_in_color = _values(folder / OBJECTS / f"{name}.png", in_colors=False)
        void = _VOID_COLOR if objects_in_color else _VOID
        if objects.shape != classes.shape:
            raise UserError(
                f"{folder / OBJECTS / name}.png has the size {list(objects.shape)} (height, "
                f"width), but {path} has {list(classes.shape)}. The sizes must be equal."
            )
    # Each pair of class and object is looked up once, not for every pixel.
    runs = SegmentRuns(classes << 24 | objects)
    pairs = [(value >> 24, value & 0xFFFFFF) for value in runs.ids.tolist()]
    if unknown := sorted({value for value, _ in pairs} - meaning.keys()):
        shown = first_few(
            [str([v & 255, v >> 8 & 255, v >> 16] if is_color else v) for v in unknown]
        )
        fix = "Add a line for each: name:R,G,B::"
        if not classes_file:
            fix = f"List all classes, also background, in {folder / LABEL_MAP}: name:R,G,B::"
        elif not has_map:
            fix = "Add a line for each: the lines are the classes of labels 0, 1, 2, ..."
        if is_color and not has_map:
            fix += " If the labels are palette indices, save the PNGs without palettes."
        raise UserError(
            f"the {'colours' if is_color else 'labels'} {shown} "
            f"({np.isin(classes, unknown).sum()} pixels) belong to no class of "
            f"{classes_file or 'VOC 2012'}. {fix}"
        )
    masks = defaultdict(list)
    for value, (label, number) in zip(runs.ids.tolist(), pairs, strict=True):
        if meaning[label]:
            masks[meaning[label], 0 if number == void else number].append(runs.run_lengths(value))
    # Tools that write a file of classes number every shape, including shapes of stuff.
    numbered = None if classes_file else True
    segments = [
        Segment(label, rle.merge(parts), instance=numbered if number else False)
        for (label, number), parts in sorted(masks.items())
    ]
    return replace(image, segments=segments)


def _values(path: Path, in_colors: bool) -> tuple[np.ndarray, bool]:
    """Return a PNG's labels or packed RGB colours, int64 [H, W], and whether they are colours."""
    picture = load_labels(path, "VOC PNG")
    # ``in_colors`` matters only for palette PNGs, whose indices are labels otherwise. In a palette
    # that a program has sorted, VOC's colours tell the labels.
    entries = palette_entries(picture)
    if entries.keys() <= _VOC_COLORS.keys():
        in_colors |= any(_VOC_COLORS[color] != index for color, index in entries.items())
    if picture.mode in ("RGB", "RGBA") or (picture.mode == "P" and in_colors):
        return rgb2id(np.asarray(picture.convert("RGB"))).astype(np.int64), True
    if picture.mode not in ("P", "L", "1") and not picture.mode.startswith("I"):
        raise UserError(f"{path}: expected a palette, grey or RGB PNG, found {picture.mode!r}.")
    return np.asarray(picture).astype(np.int64), False


def _labels(path: Path | None) -> tuple[dict[int, str], dict[int, str]]:
    """Return two dicts of class names, by label and by colour; VOC 2012's if there is no file."""
    lines: Sequence[str] = [*filter(None, read_lines(path))] if path else VOC_CLASSES
    has_map = path is not None and path.name == LABEL_MAP
    if has_map:
        lines = [line for line in lines if not line.startswith("#")]
    elif path:
        if lines[:1] == ["__ignore__"]:  # its label is 255
            lines = lines[1:]
        if lines[:1] not in (["_background_"], [BACKGROUND]):
            raise UserError(
                f"{path}: expected _background_ as the first class, as labelme2voc writes it, "
                f"found {printable(lines[:1])}. Add it, or rename the file if the classes are VOC "
                "2012's."
            )
        lines = [BACKGROUND, *lines[1:]]
    names: dict[int, str] = {}
    colors: dict[int, str] = {}
    for line in lines:
        name, *others = line.split(":") if has_map else [line]
        try:
            parts = others[0].split(",") if others and others[0] else voc_color(len(names))
            red, green, blue = bytes(map(int, parts))
        except ValueError:
            message = f"{path}: expected name:R,G,B:parts:actions, found {printable(line)}."
            raise UserError(message) from None
        if (number := int.from_bytes((red, green, blue), "little")) in colors:
            raise UserError(f"{path}: {printable(name)}: colour {red, green, blue} is used twice.")
        # "" stands for background.
        names[len(names)] = colors[number] = "" if name == BACKGROUND else name
    return names, colors


def voc_color(index: int) -> tuple[int, int, int]:
    """Return the colour (red, green, blue) of an index in VOC's palette."""
    red, green, blue = (
        sum((index >> 3 * place + channel & 1) << 7 - place for place in range(3))
        for channel in range(3)
    )
    return red, green, blue


_VOC_COLORS = {voc_color(index): index for index in range(256)}
_VOID_COLOR = int.from_bytes(voc_color(_VOID), "little")
