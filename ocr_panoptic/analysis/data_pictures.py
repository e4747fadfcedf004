"""The work on one image of a data set: what it shows, and its pictures for the page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocr_panoptic.data.fingerprint import file_digest
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.visualization.data_page import card_pictures, crop_picture
from ocr_panoptic.visualization.overlays import Color, segment_colors

from .data_facts import Box, ImageFacts, SegmentFacts, segments_of, suspicions_of
from .data_items import VOID, DataItem, DataItems
from .near_images import small_picture


class ShownPart(NamedTuple):
    """
    A part of an image that is shown.

    Attributes:
        image: its number.
        segments: ids of what is marked.
    """

    image: int
    segments: tuple[int, ...]
    box: Box


def look_at(numbered: tuple[int, DataItem], content: DataItems, folder: Path) -> ImageFacts:
    """Return what an image shows; its pictures are written as ``<number>.jpg`` and
    ``<number>o.jpg``."""
    number, item = numbered
    try:
        image = read_picture(item.image, "RGB")
        facts = replace(_description(item, image), width=image.shape[1], height=image.shape[0])
        ids, colors = None, {}
        if item.truth is not None:
            ids, listed = content.truth(item)
            if ids.shape != image.shape[:2]:
                raise UserError(
                    f"{item.truth}: has {ids.shape[1]}x{ids.shape[0]} pixels, the image "
                    f"{image.shape[1]}x{image.shape[0]} (width x height)."
                )
            segments = segments_of(ids, listed)
            facts = replace(
                facts,
                void=int((ids == VOID).sum()),
                segments=segments,
                suspicions=suspicions_of(ids, segments, content.classes),
            )
            colors = _colors(content, segments)
    except (OSError, ValueError) as error:
        return ImageFacts(fault=str(error))
    small, overlay = card_pictures(image, ids, colors)
    save_jpeg(folder / f"{number:06d}.jpg", small)
    if overlay is not None:
        save_jpeg(folder / f"{number:06d}o.jpg", overlay)
    return facts


def compared_facts(item: DataItem) -> ImageFacts:
    """Return what is compared of an image; without it, where it cannot be read."""
    try:
        return _description(item, read_picture(item.image, "RGB"))
    except (OSError, ValueError) as error:
        return ImageFacts(fault=str(error))


def _description(item: DataItem, image: np.ndarray) -> ImageFacts:
    return ImageFacts(picture=small_picture(image), digest=file_digest(Path(item.image)))


def _colors(content: DataItems, segments: Sequence[SegmentFacts]) -> dict[int, Color]:
    colors = [data_class.color for data_class in content.classes]
    info = [
        {
            "id": s.id,
            "isthing": content.classes[s.class_index].isthing,
            "category_id": s.class_index,
        }
        for s in segments
    ]
    return segment_colors(info, colors, colors)


def draw_place(task: tuple[ShownPart, DataItem, Path], content: DataItems) -> None:
    """Write the picture of a place."""
    place, item, path = task
    ids, _ = content.truth(item)
    save_jpeg(path, crop_picture(read_picture(item.image, "RGB"), ids, place.box, place.segments))


def save_jpeg(path: Path, picture: np.ndarray) -> None:
    """Args: picture: uint8 [H, W, 3] RGB."""
    with replacing(path) as temporary:
        Image.fromarray(picture).save(temporary, format="JPEG", quality=82)
