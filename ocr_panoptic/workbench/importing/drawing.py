"""Writing the files of a split: a PNG for each image, a panoptic JSON, and links to the images."""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.panoptic.annotations import Category
from ocr_panoptic.formats.coco_panoptic import write_panoptic_json, write_panoptic_png
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.formats.segment_runs import segment_statistics
from ocr_panoptic.progress import imap_with_progress

from .annotated_image import AnnotatedImage
from .kinds import Kinds
from .painting import Counts, paint

IMAGES = "images"


@dataclass(frozen=True)
class Drawing:
    """
    Settings for turning segments into PNGs.

    Attributes:
        kinds: kinds of the classes. A class's index is its semantic label, index + 1 its category
            id.
        smaller_on_top, rest: see :func:`.painting.paint`.
        semantic: whether to draw label PNGs instead of panoptic PNGs.
    """

    kinds: Kinds
    smaller_on_top: bool
    rest: str | None
    semantic: bool

    @property
    def folder(self) -> str:
        return "semantic" if self.semantic else "panoptic"


def png_name(image: AnnotatedImage) -> str:
    return str(PurePosixPath(image.name).with_suffix(".png"))


def draw_split(
    images: Sequence[AnnotatedImage], folder: Path, drawing: Drawing, workers: int | None = None
) -> Counts:
    """
    Write a split's files into a folder.

    Args:
        workers: number of processes, see :func:`.imap_with_progress`.
    """
    total: Counts = defaultdict(Counter)
    entries = []
    draw = partial(_draw, folder=folder / drawing.folder, drawing=drawing)
    drawn = imap_with_progress(draw, images, f"import {folder.name}", workers)
    for number, (image, (segments, counts)) in enumerate(zip(images, drawn, strict=True), 1):
        for key, numbers in counts.items():
            total[key].update(numbers)
        size = {"height": image.height, "width": image.width}
        entry = {"id": number, "file_name": image.name, **size}
        annotation = {"image_id": number, "file_name": png_name(image), "segments_info": segments}
        entries.append((entry, annotation))
        link = folder / IMAGES / image.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.abspath(image.file))
    if not drawing.semantic:
        kinds = drawing.kinds
        categories = [
            Category(place, name, name in kinds.things, kinds.color(name)).as_json()
            for place, name in enumerate(kinds.classes, 1)
        ]
        write_panoptic_json(folder / "panoptic.json", entries, categories)
    return total


def _draw(image: AnnotatedImage, folder: Path, drawing: Drawing) -> tuple[list[dict], Counts]:
    """Write the PNG of an image; return its ``segments_info`` and counts."""
    output = folder / png_name(image)
    painted = paint(image, drawing.kinds, drawing.smaller_on_top, drawing.rest)
    if drawing.semantic:
        write_label_png(output, painted.semantic(VOID_LABEL))
        return [], painted.counts
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
    return segments, painted.counts
