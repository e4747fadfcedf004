"""Pascal VOC: a PNG of classes and a PNG of objects for each image.

The PNGs are those of VOC 2012 (a palette, whose indices are the labels), of one channel, or in
colours, as CVAT and Datumaro write them, with a ``labelmap.txt`` of names and colours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.coco_panoptic import rgb2id
from ocr_panoptic.formats.files import printable, read_bytes
from ocr_panoptic.formats.pictures import load_labels

from .annotated_image import AnnotatedImage, Segment
from .masks import masks_of_map
from .reading import check_size, each, files_below, image_with_stem, require_images

_CLASSES = "SegmentationClass"
OBJECTS = "SegmentationObject"
_IMAGES = "JPEGImages"
LABEL_MAP = "labelmap.txt"
BACKGROUND = "background"
_VOID = 255  # the border between objects
MAX_LIST_BYTES = 64 << 20  # of a list of images or of labels

# Of VOC 2012, in the order of their labels.
VOC_CLASSES = (
    *(BACKGROUND, "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair"),
    *("cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)


@dataclass(frozen=True)
class Labels:
    """The meaning of the values of a PNG of classes; void is in neither.

    Attributes:
        by_index: names, for PNGs of one channel or a palette.
        by_color: colour, as :func:`rgb2id` numbers it, -> name.
        void_color: of void.
        has_colors: they are of a ``labelmap.txt``: the colours of a palette count, not its indices.
    """

    by_index: Mapping[int, str]
    by_color: Mapping[int, str]
    void_color: int
    has_colors: bool


def read_voc(source: Path, images: Path | None = None) -> Iterator[AnnotatedImage]:
    """
    The images of which there is a PNG of classes.

    Pixels of an object are a segment of their own, in VOC 2012 always of a thing, where there is a
    ``labelmap.txt`` perhaps of stuff; those of a class without object are a region; those of the
    background and of void, the border between objects, are none. Without a folder
    ``SegmentationObject`` there are no objects; where there is one it has a PNG of each image.

    Args:
        source: the folder that holds ``SegmentationClass`` and perhaps ``SegmentationObject`` and
            ``labelmap.txt``; or a text file with the name of an image in each line, two folders
            below it, as ``ImageSets/Segmentation/train.txt`` is.
        images: by default ``JPEGImages`` in that folder.

    Raises:
        FileNotFoundError, ValueError: a folder or file is missing, or ``labelmap.txt`` is none.
        DataFaults: at the end, faults of single images: a label or colour that has no name, a size
            that is not the image's, broken files.
    """
    folder, names = _names(source)
    labels = _labels(folder / LABEL_MAP)
    images = require_images(images or folder / _IMAGES, str(source))
    yield from each(names, lambda name: _read_image(name, folder, images, labels))


def _names(source: Path) -> tuple[Path, list[str]]:
    """The folder of all, and the images' paths below theirs without suffix."""
    if source.is_file():
        folder = source.parent.parent.parent
        text = read_bytes(source, MAX_LIST_BYTES).decode("utf-8", "replace")
        names = [line.strip() for line in text.splitlines() if line.strip()]
        if not names:
            raise UserError(f"{source}: names no image.")
    else:
        folder, classes = source, source / _CLASSES
        if not classes.is_dir():
            raise MissingFileError(
                f"{classes}: not found. Give the folder that holds {_CLASSES}, or a list such as "
                "ImageSets/Segmentation/train.txt."
            )
        files = files_below(classes, (".png",))
        names = [file.relative_to(classes).with_suffix("").as_posix() for file in files]
    return folder, names


def _read_image(name: str, folder: Path, images: Path, labels: Labels) -> AnnotatedImage:
    path = folder / _CLASSES / f"{name}.png"
    image = image_with_stem(images, [name], str(path))
    names, classes = _read_classes(path, labels)
    check_size(image, *classes.shape, str(path))
    objects = np.zeros_like(classes)
    if (folder / OBJECTS).is_dir():
        other = folder / OBJECTS / f"{name}.png"
        objects = _read_objects(other, labels.void_color)
        check_size(image, *objects.shape, str(other))
    both = np.where(classes > 0, classes << 24 | objects, 0)
    # Tools that write a labelmap.txt number each shape, those of stuff too.
    numbered = None if labels.has_colors else True
    segments = [
        Segment(names[value >> 24], mask, instance=numbered if value & 0xFFFFFF else False)
        for value, mask in masks_of_map(both)
    ]
    return replace(image, segments=segments)


def _read_classes(path: Path, labels: Labels) -> tuple[list[str], np.ndarray]:
    """Names, "" for none, and the place of each pixel's, int64 [H, W]."""
    values, is_color = _values(path, in_colors=labels.has_colors)
    if is_color:
        meaning = {labels.void_color: "", **labels.by_color}
    else:
        meaning = {_VOID: "", **labels.by_index}
    found, place = np.unique(values, return_inverse=True)
    if unknown := [value for value in found.tolist() if value not in meaning]:
        shown = [[v & 255, v >> 8 & 255, v >> 16] if is_color else v for v in unknown[:5]]
        where = path.parent.parent / LABEL_MAP if labels.has_colors else "VOC 2012"
        raise UserError(
            f"{path}: {'colours' if is_color else 'labels'} that are no class of {where}: {shown}, "
            f"on {np.isin(values, unknown).sum()} pixels. Name each in a {LABEL_MAP}: name:R,G,B::"
        )
    names = ["", *sorted({meaning[value] for value in found.tolist()} - {""})]
    table = [names.index(meaning[value]) for value in found.tolist()]
    return names, np.array(table, np.int64)[place].reshape(values.shape)


def _read_objects(path: Path, void_color: int) -> np.ndarray:
    """A number of each pixel's object, 0 for none, int64 [H, W]."""
    values, is_color = _values(path, in_colors=False)
    return np.where(values == (void_color if is_color else _VOID), 0, values)


def _values(path: Path, in_colors: bool) -> tuple[np.ndarray, bool]:
    """Labels or colours of a PNG, int64 [H, W], and whether they are colours.

    Args:
        in_colors: colours rather than indices where there is a palette.
    """
    picture = load_labels(path, "PNG of VOC")
    if picture.mode in ("RGB", "RGBA") or (picture.mode == "P" and in_colors):
        return rgb2id(np.asarray(picture.convert("RGB"))).astype(np.int64), True
    values = np.asarray(picture)
    if picture.mode not in ("P", "L", "1") and not picture.mode.startswith("I"):
        raise UserError(f"{path}: expected a palette, one channel or RGB, found {picture.mode!r}.")
    return values.astype(np.int64), False


def _labels(path: Path) -> Labels:
    """Read the labels of a ``labelmap.txt``, or return those of VOC 2012 where there is none."""
    void_color = _as_id(voc_color(_VOID))
    if not path.exists():
        names = {index: _or_none(name) for index, name in enumerate(VOC_CLASSES)}
        colors = {_as_id(voc_color(index)): name for index, name in names.items()}
        return Labels(names, colors, void_color, has_colors=False)
    names, colors = {}, {}
    text = read_bytes(path, MAX_LIST_BYTES).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines()]
    for line in lines:
        if not line or line.startswith("#"):
            continue
        name, *others = line.split(":")
        parts = others[0].split(",") if others and others[0] else []
        if not all(part.strip().isdecimal() and int(part) < 256 for part in parts) or len(
            parts
        ) not in (0, 3):
            raise UserError(f"{path}: expected name:R,G,B:parts:actions, found {printable(line)}.")
        color = tuple(map(int, parts)) if parts else voc_color(len(names))
        if (number := _as_id(color)) in colors:
            raise UserError(f"{path}: {printable(name)}: the colour {color} comes twice.")
        names[len(names)] = colors[number] = _or_none(name)
    return Labels(names, colors, void_color, has_colors=True)


def _or_none(name: str) -> str:
    return "" if name == BACKGROUND else name


def _as_id(color: tuple[int, int, int]) -> int:
    return color[0] | color[1] << 8 | color[2] << 16


def voc_color(index: int) -> tuple[int, int, int]:
    """Return a colour of VOC's palette: bits 0, 3, 6 of the index are red's highest, and so on."""
    channels = [
        sum((index >> 3 * place + channel & 1) << 7 - place for place in range(3))
        for channel in range(3)
    ]
    return tuple(channels)
