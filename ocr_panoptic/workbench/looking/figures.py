"""
The report's pictures of an image and its predictions, as data URIs with captions.

Shape letters: H, W size of the image; K semantic classes, each with an object region; h, w size of
features.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from detectron2.data import Metadata
from PIL import Image, ImageDraw

from ocr_panoptic.formats.coco_panoptic import VOID_LABEL, label_of_segments
from ocr_panoptic.formats.pictures import Color
from ocr_panoptic.formats.segment_runs import SegmentRuns
from ocr_panoptic.predict.overlays import draw_segments, heat_map, resize_picture, segment_colors

from .scene import Inspection, PanopticMap, SeenRegions

SIDE, REGION_SIDE = 640, 320  # longer side in pixels of a picture, and of a region's picture
SHOWN = 6  # number of regions to show for a pixel, the most related first


class Picture(NamedTuple):
    """A picture as a data URI, with the CSS colour of the class that it shows, if any."""

    title: str
    caption: str
    src: str
    color: str = ""


class Relation(NamedTuple):
    """
    The object regions to which a pixel relates most, with OCR's pixel-region relation in percent.

    The picture ``src`` marks the pixel.
    """

    src: str
    true_class: str
    shares: Sequence[tuple[str, str, float]]  # name, CSS colour, percent


@dataclass(frozen=True)
class ImageFigures:
    """The pictures that the report shows for an image."""

    name: str
    views: list[Picture]  # input, ground truth and predictions
    regions: list[Picture]  # the soft object region of each true class
    legend: list[tuple[str, str]]  # name and CSS colour of each class in the views
    relation: Relation | None = None


def image_figures(
    name: str,
    inspection: Inspection,
    truth: PanopticMap | np.ndarray,
    metadata: Metadata,
    with_regions: bool = True,
) -> ImageFigures:
    """
    Return pictures of an image, its ground truth and a model's predictions.

    Args:
        truth: true panoptic map or, for a semantic model, true labels int [H,W], in which
            VOID_LABEL is void.
        with_regions: whether to draw soft object regions and relation, if the head has them.
    """
    full = truth.ids.shape if isinstance(truth, PanopticMap) else truth.shape
    size = page_size(full, SIDE)
    image = resize_picture(inspection.image, *size, smooth=True)
    stuff_colors = [(int(r), int(g), int(b)) for r, g, b in metadata.stuff_colors]
    class_colors = list(map(css_color, stuff_colors))

    def drawn(ids: np.ndarray, colors: dict[int, Color]) -> str:
        ids = resize_picture(ids.astype(np.int32), *size, smooth=False)
        return jpeg_source(draw_segments(image, ids, colors))

    def panoptic(title: str, found: PanopticMap) -> Picture:
        things = sum(bool(s["isthing"]) for s in found.info)
        caption = f"{things} thing and {len(found.info) - things} stuff segments"
        colors = segment_colors(found.info, metadata.thing_colors, stuff_colors)
        return Picture(title, caption, drawn(found.ids, colors))

    def semantic(title: str, labels: np.ndarray) -> Picture:
        caption = "no labels in this image"
        if (known := true_labels != VOID_LABEL).any():
            right = (labels == true_labels)[known].mean()
            caption = f"{100 * right:.1f} % of the pixels correct"
        return Picture(title, caption, drawn(labels, dict(enumerate(stuff_colors))))

    views = [Picture("Input", f"{full[1]} × {full[0]} pixels", jpeg_source(image))]
    if isinstance(truth, PanopticMap):
        true_labels = SegmentRuns(truth.ids).labels(label_of_segments(truth.info), VOID_LABEL)
        views.append(panoptic("Truth", truth))
        if inspection.panoptic:
            views.append(panoptic("Panoptic prediction", inspection.panoptic))
    else:
        true_labels = truth
        caption = f"{len(set(np.unique(true_labels)) - {VOID_LABEL})} classes"
        views.append(Picture("Truth", caption, drawn(true_labels, dict(enumerate(stuff_colors)))))
    if inspection.coarse is not None:
        views.append(semantic("Coarse semantics", inspection.coarse))
    title = "Semantics" if inspection.coarse is None else "Refined semantics"
    views.append(semantic(title, inspection.refined))

    regions, relation = [], None
    if with_regions and inspection.regions is not None:
        small = resize_picture(image, *page_size(full, REGION_SIDE), smooth=True)
        for k in set(np.unique(true_labels).tolist()) - {VOID_LABEL}:
            weights = inspection.regions.weights[k]
            caption = f"max {weights.max():.2g} ({weights.max() * weights.size:.0f}×)"
            src = jpeg_source(heat_map(weights, small))
            regions.append(Picture(metadata.stuff_classes[k], caption, src, class_colors[k]))
        classes = list(zip(metadata.stuff_classes, class_colors))
        relation = relation_of_a_pixel(inspection.regions, true_labels, classes, image)
    found = [m for m in (truth, inspection.panoptic) if isinstance(m, PanopticMap)]
    segments = [segment for panoptic_map in found for segment in panoptic_map.info]
    maps = [inspection.coarse, inspection.refined, None if found else true_labels]
    return ImageFigures(name, views, regions, _legend(segments, maps, metadata), relation)


def relation_of_a_pixel(
    regions: SeenRegions,
    labels: np.ndarray,
    classes: Sequence[tuple[str, str]],
    image: np.ndarray,
) -> Relation | None:
    """
    Return the object regions to which a pixel of the image's rarest class relates most.

    The pixel is the centre of a cell (a position of the feature map). The result is None if the
    centres of all cells are void.

    Args:
        labels: true labels int [H,W]; values outside 0..K-1 are void.
        classes: name and CSS colour of each region.
        image: image uint8 [H',W',3] RGB.
    """
    rows, columns = ((edges[:-1] + edges[1:]) / 2 for edges in regions.cells)
    cells = labels[rows.astype(int)[:, None], columns.astype(int)]
    found, counts = np.unique(cells[(cells >= 0) & (cells < len(classes))], return_counts=True)
    if not len(found):
        return None
    label = found[counts.argmin()]
    places = np.argwhere(cells == label)
    # The median place itself may have another class, so take the class's cell nearest to it.
    row, column = places[np.abs(places - np.median(places, axis=0)).sum(axis=1).argmin()]
    y, x = rows[row] / labels.shape[0], columns[column] / labels.shape[1]
    marked = Image.fromarray(image)
    pen = ImageDraw.Draw(marked)
    x, y, radius = x * marked.width, y * marked.height, max(image.shape) / 50
    for grow, color, width in ((2, "black", 7), (0, "white", 3)):
        reach = radius + grow
        pen.ellipse((x - reach, y - reach, x + reach, y + reach), outline=color, width=width)
    shares = regions.relation[:, row, column]
    shown = [(*classes[k], 100 * float(shares[k])) for k in np.argsort(-shares)[:SHOWN]]
    return Relation(jpeg_source(np.asarray(marked)), classes[label][0], shown)


def page_size(shape: tuple[int, ...], side: int) -> tuple[int, int]:
    """Return the (height, width) of a picture after its longer side is resized to ``side``."""
    scale = side / max(shape)
    return max(1, round(scale * shape[0])), max(1, round(scale * shape[1]))


def _legend(
    segments: Sequence[dict[str, Any]], maps: Sequence[np.ndarray | None], metadata: Metadata
) -> list[tuple[str, str]]:
    """Return (name, CSS colour) of each class in segments and label maps, things first."""
    things = sorted({s["category_id"] for s in segments if s["isthing"]})
    stuff = {s["category_id"] for s in segments if not s["isthing"]}
    for labels in maps:
        stuff |= set() if labels is None else set(np.unique(labels).tolist()) - {VOID_LABEL}
    return [
        *((metadata.thing_classes[k], css_color(metadata.thing_colors[k])) for k in things),
        *((metadata.stuff_classes[k], css_color(metadata.stuff_colors[k])) for k in sorted(stuff)),
    ]


def css_color(color: Color) -> str:
    """Return a colour in CSS notation."""
    return "rgb({},{},{})".format(*(int(c) for c in color))


def jpeg_source(picture: np.ndarray) -> str:
    """Return a picture, uint8 [H,W,3] RGB, as a data URI."""
    buffer = io.BytesIO()
    # subsampling=0 keeps full chroma: thin outlines between saturated colours stay sharp.
    Image.fromarray(picture).save(buffer, "JPEG", quality=86, subsampling=0, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
