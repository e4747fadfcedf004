"""The facts of one image of a data set: its segments, those that look like mistakes, and pictures.

Shape letters: H, W size of the image; S segments.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pycocotools.mask as mask_util
from PIL import Image

from ocr_panoptic.data.fingerprint import file_digest
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.formats.pictures import Color, read_picture
from ocr_panoptic.formats.segment_runs import SegmentRuns
from ocr_panoptic.visualization.overlays import segment_colors
from ocr_panoptic.workbench.looking.data_page import card_pictures, crop_picture

from .data_items import VOID, DataClass, DataItem, DataItems, TrueSegment
from .near_images import small_picture

Box = tuple[int, int, int, int]  # x, y, width, height in pixels

TINY_SHARE = 1e-4  # of the image's pixels; a segment with fewer is tiny
SPLIT_SHARE = 0.1  # of a thing's pixels, that its second part has at least
VOID_SHARE = 0.5  # of a segment's outline inside the image, that void takes at least
SEAM = 5  # pixels: void that is narrower everywhere is a seam between segments, and does not count
SAME_BOX = 0.8  # IoU of the boxes of two things of one class
SEAM_ID = -1  # in a map, where segments have ids above 0


class SegmentFacts(NamedTuple):
    id: int
    class_index: int
    area: int  # pixels
    box: Box
    iscrowd: bool


class Suspicion(NamedTuple):
    """
    Attributes:
        kind: one of KINDS.
        value: by which it is judged: share of pixels, distance over length, IoU, share of outline.
        other: id of the other segment of a pair.
    """

    kind: str
    segment: SegmentFacts
    value: float
    other: int | None = None

    @property
    def segments(self) -> tuple[int, ...]:
        """Return the ids, that of the one in question first."""
        return (self.segment.id,) if self.other is None else (self.segment.id, self.other)


class Kind(NamedTuple):
    """
    A way in which segments are suspicious.

    Attributes:
        title: of the group of those that are.
        meaning: "A segment that ...".
        value: what the value of one says, for its caption.
        rank: of one among its kind: the lowest is the first.
    """

    title: str
    meaning: str
    value: Callable[[float], str]
    rank: Callable[[Suspicion], float]


KINDS = {
    "tiny": Kind(
        "Tiny segments",
        f"has less than {TINY_SHARE:.2%} of the image's pixels",
        lambda share: "",
        lambda s: s.segment.area,
    ),
    "split": Kind(
        "Split things",
        "is a thing in two parts, further from each other than the larger one is long",
        lambda lengths: f", parts {lengths:.1f} lengths apart",
        lambda s: -s.value,
    ),
    "duplicate": Kind(
        "Things twice",
        f"is a thing whose box overlaps another's of its class with an IoU of {SAME_BOX} or more",
        lambda iou: f", IoU {iou:.2f}",
        lambda s: -s.value,
    ),
    "void": Kind(
        "Segments at void",
        f"borders on void along {VOID_SHARE:.0%} of its outline or more (void narrower than {SEAM} "
        "pixels does not count)",
        lambda share: f", {100 * share:.0f} % of its outline",
        lambda s: -s.segment.area,
    ),
}


@dataclass(frozen=True)
class ImageFacts:
    """
    Attributes:
        fault: why the image or its truth cannot be used; "" mostly.
        void: pixels.
        picture: the image as 16x16 colours, see :mod:`.near_images`; None where it is broken.
        digest: of the file's content.
    """

    fault: str = ""
    width: int = 0
    height: int = 0
    void: int = 0
    segments: list[SegmentFacts] = field(default_factory=list)
    suspicions: list[Suspicion] = field(default_factory=list)
    picture: np.ndarray | None = None
    digest: str = ""


def segments_of(ids: np.ndarray, listed: Sequence[TrueSegment]) -> list[SegmentFacts]:
    """Return the segments of a map, int32 [H, W], that have a pixel, in the order of their ids."""
    by_id = {segment.id: segment for segment in listed}
    return [
        SegmentFacts(i, by_id[i].class_index, s.area, tuple(s.bbox), by_id[i].iscrowd)
        for i, s in SegmentRuns(ids).statistics.items()
        if i in by_id
    ]


def suspicions_of(
    ids: np.ndarray, segments: Sequence[SegmentFacts], classes: Sequence[DataClass]
) -> list[Suspicion]:
    """Return what looks like a mistake in a map, int32 [H, W]; crowds are left out."""
    segments = [segment for segment in segments if not segment.iscrowd]
    things = [segment for segment in segments if classes[segment.class_index].isthing]

    found = [
        Suspicion("tiny", segment, segment.area / ids.size)
        for segment in segments
        if segment.area < TINY_SHARE * ids.size
    ]
    for segment in things:
        if (distance := parts_distance(ids, segment)) >= 1:
            found.append(Suspicion("split", segment, distance))
    for a, b, overlap in _same_boxes(things):
        found.append(Suspicion("duplicate", a, overlap, b.id))
    shares = void_shares(ids)
    for segment in segments:
        if shares.get(segment.id, 0) >= VOID_SHARE:
            found.append(Suspicion("void", segment, float(shares[segment.id])))
    return found


def parts_distance(ids: np.ndarray, segment: SegmentFacts) -> float:
    """Return how far the two largest 8-connected parts of a segment are from each other: between
    their boxes, in longer sides of the larger part's. 0 for a segment in one part, or whose second
    one has less than SPLIT_SHARE of its pixels."""
    import cv2

    x, y, width, height = segment.box
    mask = (ids[y : y + height, x : x + width] == segment.id).astype(np.uint8)
    count, _, statistics, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    if count < 3:  # the first is what the mask leaves out
        return 0.0
    order = np.argsort(-statistics[1:, cv2.CC_STAT_AREA], kind="stable")
    (x1, y1, w1, h1, _), (x2, y2, w2, h2, area) = statistics[1:][order[:2]].tolist()
    if area < SPLIT_SHARE * segment.area:
        return 0.0
    across = max(x2 - (x1 + w1), x1 - (x2 + w2), 0)
    down = max(y2 - (y1 + h1), y1 - (y2 + h2), 0)
    return math.hypot(across, down) / max(w1, h1)


def void_shares(ids: np.ndarray) -> dict[int, float]:
    """Return, for each segment that touches void, the share of its outline that does: of the pairs
    of neighbours (beside or below) with one pixel in it and the other not. Seams count as
    segments."""
    import cv2

    void = (ids == VOID).astype(np.uint8)
    if not void.any():
        return {}
    wide = cv2.morphologyEx(void, cv2.MORPH_OPEN, np.ones((SEAM, SEAM), np.uint8))
    ids = np.where(void > wide, SEAM_ID, ids)
    found, place = np.unique(ids, return_inverse=True)
    place = place.reshape(ids.shape)
    outline, touching = np.zeros((2, len(found)), np.int64)
    for a, b in ((place[:, :-1], place[:, 1:]), (place[:-1], place[1:])):
        differs = a != b
        a, b = a[differs], b[differs]
        for one, other in ((a, b), (b, a)):
            outline += np.bincount(one, minlength=len(found))
            touching += np.bincount(one[found[other] == VOID], minlength=len(found))
    return {
        number: touching[k] / outline[k]
        for k, number in enumerate(found.tolist())
        if number not in (VOID, SEAM_ID) and touching[k]
    }


def _same_boxes(things: Sequence[SegmentFacts]) -> list[tuple[SegmentFacts, SegmentFacts, float]]:
    """Pairs of one class whose boxes are nearly the same, the smaller segment first."""
    by_class: dict[int, list[SegmentFacts]] = {}
    for segment in things:
        by_class.setdefault(segment.class_index, []).append(segment)
    found = []
    for group in by_class.values():
        boxes = np.array([segment.box for segment in group], float)
        overlaps = mask_util.iou(boxes, boxes, [0] * len(boxes))
        for a, b in zip(*np.nonzero(np.triu(overlaps >= SAME_BOX, 1)), strict=True):
            pair = sorted((group[a], group[b]), key=lambda segment: segment.area)
            found.append((*pair, float(overlaps[a, b])))
    return found


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
