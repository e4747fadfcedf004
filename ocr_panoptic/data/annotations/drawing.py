"""The files of one split: a PNG for each image, and links to the images."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from ocr_panoptic.coco_panoptic import write_panoptic_png
from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.fingerprint import digest
from ocr_panoptic.data.journal import Journal, Work
from ocr_panoptic.data.panoptic.segments import segment_statistics
from ocr_panoptic.files import replacing
from ocr_panoptic.label_png import write_label_png
from ocr_panoptic.pictures import read_size

from .annotated_image import AnnotatedImage
from .kinds import Kinds
from .painting import paint

VERSION = 1  # of what is written of an image
IMAGES = "images"


@dataclass(frozen=True)
class Drawing:
    """How segments become a PNG.

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
        journal: Journal,
        workers: int | None = None,
    ) -> None:
        """Draw the PNGs of a split; the journal publishes them.

        Args:
            folder: of the split.

        Raises:
            DataFaults: images that are broken or of another size than annotated.
        """
        recipe = [VERSION, self.overlap, self.rest, self.semantic]
        recipe += [self.kinds.things, self.kinds.stuff, self.kinds.ignore]
        works = [
            Work(
                key=png_name(image),
                recipe=digest(*recipe, image.height, image.width, _as_json(image)),
                inputs=(image.file,),
                output=folder / self.folder / png_name(image),
            )
            for image in images
        ]
        journal.do(partial(draw, drawing=self), images, works, f"import {folder.name}", workers)


def png_name(image: AnnotatedImage) -> str:
    return str(PurePosixPath(image.name).with_suffix(".png"))


def _as_json(image: AnnotatedImage) -> list:
    return [
        {**vars(segment), "mask": segment.mask["counts"].decode("ascii")}
        for segment in image.segments
    ]


def draw(image: AnnotatedImage, output: Path, drawing: Drawing) -> tuple[list[str], str]:
    """Write the PNG of an image; the image is decoded wholly.

    Returns:
        its faults, and JSON: ``segments_info`` (of a panoptic PNG), and the losses.
    """
    try:
        width, height, note = read_size(image.file)
    except ValueError as error:
        return [f"{image.file}: the image {error}."], ""
    if (height, width) != (image.height, image.width):
        return [
            f"{image.file}: the image has {width}x{height} pixels{note}, the annotations are of "
            f"{image.width}x{image.height} (width x height)."
        ], ""
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
    return [], json.dumps([segments, painted.losses.as_json()])


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
        case ("classes.json",) | (_, "panoptic.json"):
            return True
        case (_, "images", *_):
            return path.is_symlink()
        case (_, "panoptic" | "semantic", *_):
            return path.suffix == ".png"
    return False
