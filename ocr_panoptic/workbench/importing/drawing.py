"""The files of one split: a PNG for each image, and links to the images."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.faults import raise_if_any
from ocr_panoptic.data.parallel import imap_with_progress
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.formats.pictures import read_size
from ocr_panoptic.formats.segment_runs import segment_statistics

from .annotated_image import AnnotatedImage
from .kinds import Kinds
from .painting import Losses, paint

IMAGES = "images"


class DrawnImages(NamedTuple):
    """
    Attributes:
        segments: ``segments_info`` of each panoptic PNG, JSON, which takes a fifth of the memory.
        losses: what of the annotations is not in the PNGs.
    """

    segments: list[str]
    losses: Losses


@dataclass(frozen=True)
class Drawing:
    """The way segments become a PNG.

    Attributes:
        kinds: what the classes are; their places are semantic labels, and from 1 category ids.
        overlap, rest: see :func:`.painting.paint`.
        semantic: a label PNG and not a panoptic one.
    """

    kinds: Kinds
    overlap: str
    rest: str | None
    semantic: bool

    @property
    def folder(self) -> str:
        return "semantic" if self.semantic else "panoptic"

    def draw_all(
        self,
        images: Sequence[AnnotatedImage],
        folder: Path,
        workers: int | None = None,
    ) -> DrawnImages:
        """Draw the PNGs of a split into a folder.

        Raises:
            DataFaults: images that are broken or of another size than annotated.
        """
        faults, segments, losses = [], [], Losses()
        one = partial(draw, folder=folder, drawing=self)
        for wrong, drawn in imap_with_progress(one, images, f"import {folder.name}", workers):
            faults += wrong
            if drawn is not None:
                segments += drawn.segments
                losses = Losses.of([losses, drawn.losses])
        raise_if_any(faults)
        return DrawnImages(segments, losses)


def png_name(image: AnnotatedImage) -> str:
    return str(PurePosixPath(image.name).with_suffix(".png"))


def draw(
    image: AnnotatedImage, folder: Path, drawing: Drawing
) -> tuple[list[str], DrawnImages | None]:
    """Write the PNG of an image into a folder; the image is decoded wholly.

    Returns:
        its faults; what was drawn, None where there is one.
    """
    output = folder / png_name(image)
    try:
        width, height, note = read_size(image.file)
    except ValueError as error:
        return [f"{image.file}: the image {error}."], None
    if (height, width) != (image.height, image.width):
        return [
            f"{image.file}: the image has {width}x{height} pixels{note}, the annotations are of "
            f"{image.width}x{image.height} (width x height)."
        ], None
    painted = paint(image, drawing.kinds, drawing.overlap, drawing.rest)
    segments = []
    if drawing.semantic:
        write_label_png(output, painted.semantic(VOID_LABEL))
    else:
        write_panoptic_png(output, painted.ids)
        statistics = segment_statistics(painted.ids)
        segments = [
            {
                "id": number,
                "category_id": label + 1,
                "iscrowd": int(number in painted.crowds),
                **statistics[number]._asdict(),
            }
            for number, label in painted.labels.items()
        ]
    return [], DrawnImages([json.dumps(segments)], painted.losses)


def link_images(images: Sequence[AnnotatedImage], folder: Path) -> None:
    """Make a link to each image, by its name, below a folder."""
    for image in images:
        link, target = folder / image.name, os.path.abspath(image.file)
        if link.is_symlink() and os.readlink(link) == target:
            continue
        with replacing(link) as temporary:
            os.symlink(target, temporary)


def remove_others(folder: Path, wanted: Collection[Path]) -> None:
    """Remove from the folder of all splits what an earlier import has written there and this one
    does not: links, PNGs, JSONs, and folders that are empty then."""
    for root, folders, names in os.walk(folder, topdown=False):
        for path in (Path(root, name) for name in names):
            if path not in wanted and _is_written(path, path.relative_to(folder).parts):
                path.unlink()
        for path in (Path(root, name) for name in folders):
            if not path.is_symlink() and not any(path.iterdir()):
                path.rmdir()


def _is_written(path: Path, parts: tuple[str, ...]) -> bool:
    match parts:
        case (_, "panoptic.json"):
            return True
        case (_, "images", *_):
            return path.is_symlink()
        case (_, "panoptic" | "semantic", *_):
            return path.suffix == ".png"
    return False
