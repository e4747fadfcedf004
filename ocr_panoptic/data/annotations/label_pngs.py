"""Semantic label PNGs under annotations of objects: the regions that the objects lie on."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ocr_panoptic.data.semantic.label_space import LabelSpace
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.label_map import apply_label_map
from ocr_panoptic.formats.label_png import read_label_png

from .annotated_image import AnnotatedImage, Segment
from .masks import masks_of_map
from .reading import each


def above_labels(
    images: Iterable[AnnotatedImage], folder: Path, space: LabelSpace
) -> Iterator[AnnotatedImage]:
    """
    The images with a region below their segments for each class that their label PNG shows.

    Args:
        folder: of the label PNGs; an image's has its name, but for the suffix.

    Raises:
        FileNotFoundError: there is no such folder.
        DataFaults: at the end: a missing or broken PNG, of another size than the image, or with a
            label that the space lacks.
    """
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: folder of label PNGs not found.")
    yield from each(images, lambda image: _above(image, folder, space))


def _above(image: AnnotatedImage, folder: Path, space: LabelSpace) -> AnnotatedImage:
    path = folder / PurePosixPath(image.name).with_suffix(".png")
    labels = read_label_png(path)
    if labels.shape != (image.height, image.width):
        raise UserError(
            f"{path}: the label PNG has {labels.shape[1]}x{labels.shape[0]} pixels, the image "
            f"{image.file} {image.width}x{image.height} (width x height)."
        )
    try:
        places = apply_label_map(labels, space.label_map)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    numbers = places.astype("int32") + 1
    numbers[numbers > len(space.classes)] = 0
    regions = [
        Segment(space.classes[number - 1], mask, instance=False)
        for number, mask in masks_of_map(numbers)
    ]
    return replace(image, segments=[*regions, *image.segments])
