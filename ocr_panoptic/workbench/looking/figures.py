"""The pictures of one image for the report: encoded, captioned, described."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from detectron2.data import Metadata
from PIL import Image

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import Color
from ocr_panoptic.visualization.overlays import (
    draw_segments,
    heat_map,
    resize_picture,
    segment_colors,
)
from ocr_panoptic.workbench.looking.scene import Inspection, PanopticMap

from .relation import RelationFigure, relation_figure

VOID = -1  # no semantic label has it
MIN_SIDE, MAX_SIDE = 320, 640  # of a picture in the page, pixels
REGION_SIDE = 320  # longer side of a soft object region's picture


@dataclass(frozen=True)
class Picture:
    title: str
    caption: str
    alt: str
    src: str  # data URI
    color: str = ""  # CSS colour of the class that it is about


@dataclass(frozen=True)
class ImageFigures:
    """The pictures of one image; ``legend`` has the name and CSS colour of the classes in them."""

    name: str
    views: list[Picture]
    regions: list[Picture]
    legend: list[tuple[str, str]]
    relation: RelationFigure | None = None


def image_figures(
    name: str, inspection: Inspection, truth: PanopticMap | np.ndarray, metadata: Metadata
) -> ImageFigures:
    """
    Args:
        name: what the image is called.
        inspection: what the model sees.
        truth: the true panoptic map, or for a model of semantic segmentation alone the true labels
            int [H,W], of the image's size; metadata.ignore_label is void in them.
        metadata: with stuff_classes, stuff_colors and, for panoptic data, thing_classes,
            thing_colors.

    Raises:
        ValueError: the truth's size is not the image's.
    """
    size = truth.ids.shape if isinstance(truth, PanopticMap) else truth.shape
    if size != inspection.image.shape[:2]:
        raise UserError(
            f"{name}: the image has size {inspection.image.shape[:2]}, its truth {size} "
            "(height, width)"
        )
    canvas = _Canvas(name, inspection.image, metadata)
    views = [canvas.input()]
    if isinstance(truth, PanopticMap):
        true_labels = truth.sem_seg(void=VOID)
        views.append(canvas.panoptic("Truth", truth))
        views.append(canvas.panoptic("Panoptic prediction", inspection.panoptic))
    else:
        true_labels = np.where(truth == metadata.ignore_label, VOID, truth.astype(np.int32))
        views.append(canvas.truth(true_labels))
    if inspection.coarse is not None:
        views.append(canvas.semantic("Coarse semantics", inspection.coarse, true_labels))
    title = "Semantics" if inspection.coarse is None else "Refined semantics"
    views.append(canvas.semantic(title, inspection.refined, true_labels))

    views += [canvas.attention(*found) for found in inspection.attention.items()]

    present = [int(k) for k in np.unique(true_labels) if k != VOID]
    regions = []
    if inspection.regions is not None:
        regions = [canvas.region(inspection.regions[k], k) for k in present]
    relation = None
    if inspection.relation is not None:
        classes = list(zip(metadata.stuff_classes, map(css_color, metadata.stuff_colors)))
        relation = relation_figure(inspection.relation, true_labels, classes, views[0].src)
    legend = _legend(truth, inspection, true_labels, metadata)
    return ImageFigures(name, views, regions, legend, relation)


class _Canvas:
    """An image at its size in the page, under whatever is drawn on it."""

    def __init__(self, name: str, image: np.ndarray, metadata: Metadata):
        self._name = name
        self._original_size = image.shape[:2]
        self._size = _page_size(*self._original_size)
        self._image = resize_picture(image, *self._size, smooth=True)
        self._metadata = metadata

    def input(self) -> Picture:
        height, width = self._original_size
        return Picture(
            "Input",
            f"{width} × {height} pixels",
            f"The image {self._name}",
            jpeg_source(self._image),
        )

    def panoptic(self, title: str, segments: PanopticMap) -> Picture:
        metadata = self._metadata
        colors = segment_colors(segments.info, metadata.thing_colors, metadata.stuff_colors)
        things = sum(bool(s["isthing"]) for s in segments.info)
        caption = f"{things} thing and {len(segments.info) - things} stuff segments"
        picture = self._segments(segments.ids, colors)
        return Picture(title, caption, f"{title} of {self._name}: {caption}", picture)

    def truth(self, labels: np.ndarray) -> Picture:
        """Args: int [H,W]."""
        caption = f"{len(set(np.unique(labels)) - {VOID})} classes"
        return Picture("Truth", caption, f"Truth of {self._name}: {caption}", self._labels(labels))

    def semantic(self, title: str, labels: np.ndarray, truth: np.ndarray) -> Picture:
        """Args: int [H,W] both."""
        known = truth != VOID
        caption = "no true label in this image"
        if known.any():
            caption = f"{100 * (labels == truth)[known].mean():.1f} % of the pixels right"
        return Picture(title, caption, f"{title} of {self._name}: {caption}", self._labels(labels))

    def region(self, weights: np.ndarray, label: int) -> Picture:
        """Args: float [h,w] of sum 1."""
        shrink = REGION_SIDE / max(self._size)
        size = [max(1, round(side * shrink)) for side in self._size]
        picture = heat_map(weights, resize_picture(self._image, *size, smooth=True))
        class_name = self._metadata.stuff_classes[label]
        peak = float(weights.max())
        caption = f"max {peak:.2g} ({peak * weights.size:.0f}×)"
        alt = f"Soft object region of {class_name} in {self._name}, {caption}"
        color = css_color(self._metadata.stuff_colors[label])
        return Picture(class_name, caption, alt, jpeg_source(picture), color)

    def attention(self, scale: float, weights: np.ndarray) -> Picture:
        """Args: float in (0, 1), of any size."""
        title = f"Attention at scale {scale:g}"
        caption = f"{100 * weights.mean():.0f} % of the logits, from 0 (dark) to 100 % (bright)"
        picture = heat_map(weights, self._image, logarithmic=False)
        return Picture(title, caption, f"{title} of {self._name}: {caption}", jpeg_source(picture))

    def _labels(self, labels: np.ndarray) -> str:
        return self._segments(labels, dict(enumerate(map(tuple, self._metadata.stuff_colors))))

    def _segments(self, ids: np.ndarray, colors: dict[int, Color]) -> str:
        ids = resize_picture(ids.astype(np.int32), *self._size, smooth=False)
        return jpeg_source(draw_segments(self._image, ids, colors))


def _page_size(height: int, width: int) -> tuple[int, int]:
    """Small images grow by a whole factor, so that every label keeps its square pixels."""
    if max(height, width) > MAX_SIDE:
        factor = MAX_SIDE / max(height, width)
    else:
        factor = max(1, min(-(-MIN_SIDE // min(height, width)), MAX_SIDE // max(height, width)))
    return max(1, round(height * factor)), max(1, round(width * factor))


def _legend(
    truth: PanopticMap | np.ndarray,
    inspection: Inspection,
    true_labels: np.ndarray,
    metadata: Metadata,
) -> list[tuple[str, str]]:
    segments, maps = [], [inspection.coarse, inspection.refined]
    if isinstance(truth, PanopticMap):
        segments = [*truth.info, *inspection.panoptic.info]
    else:
        maps.append(true_labels)
    things = sorted({s["category_id"] for s in segments if s["isthing"]})
    stuff = {s["category_id"] for s in segments if not s["isthing"]}
    for labels in maps:
        if labels is not None:
            stuff.update(set(np.unique(labels).tolist()) - {VOID})
    return [
        *((metadata.thing_classes[k], css_color(metadata.thing_colors[k])) for k in things),
        *((metadata.stuff_classes[k], css_color(metadata.stuff_colors[k])) for k in sorted(stuff)),
    ]


def css_color(color: Color) -> str:
    """The colour as CSS writes it."""
    return "rgb({},{},{})".format(*(int(c) for c in color))


def png_source(path: Path) -> str:
    """A PNG file as a data URI, "" where there is no such file."""
    if not path.is_file():
        return ""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def jpeg_source(picture: np.ndarray) -> str:
    """Args: uint8 [H,W,3] RGB. Returns: a data URI."""
    buffer = io.BytesIO()
    # Full chroma: thin outlines between saturated colours stay sharp.
    Image.fromarray(picture).save(buffer, "JPEG", quality=86, subsampling=0, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
