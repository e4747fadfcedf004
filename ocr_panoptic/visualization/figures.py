"""The pictures of one image for the report: encoded, captioned, described."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from detectron2.data import Metadata
from PIL import Image

from ocr_panoptic.visualization.overlays import (
    Color,
    draw_segments,
    heat_map,
    resize,
    segment_colors,
)
from ocr_panoptic.visualization.scene import Inspection, Segments

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
    """All pictures of one image; `legend` has the name and CSS colour of the classes in them."""

    name: str
    views: list[Picture]
    regions: list[Picture]
    legend: list[tuple[str, str]]


def image_figures(
    name: str, inspection: Inspection, truth: Segments, metadata: Metadata
) -> ImageFigures:
    """
    Args:
        name: what the image is called.
        inspection: what the model sees.
        truth: the true panoptic map, of the image's size.
        metadata: with thing_classes, thing_colors, stuff_classes, stuff_colors.

    Raises:
        ValueError: the truth's size is not the image's.
    """
    if truth.ids.shape != inspection.image.shape[:2]:
        raise ValueError(
            f"{name}: the image has size {inspection.image.shape[:2]}, its panoptic PNG "
            f"{truth.ids.shape} (height, width)"
        )
    canvas = _Canvas(inspection.image, metadata)
    true_labels = truth.sem_seg(void=VOID)
    views = [
        canvas.input(name),
        canvas.panoptic("Truth", truth, name),
        canvas.panoptic("Panoptic prediction", inspection.panoptic, name),
    ]
    if inspection.coarse is not None:
        views.append(canvas.semantic("Coarse semantics", inspection.coarse, true_labels, name))
    title = "Semantics" if inspection.coarse is None else "Refined semantics"
    views.append(canvas.semantic(title, inspection.refined, true_labels, name))

    present = [int(k) for k in np.unique(true_labels) if k != VOID]
    regions = []
    if inspection.regions is not None:
        regions = [canvas.region(inspection.regions[k], k, name) for k in present]
    return ImageFigures(name, views, regions, _legend(truth, inspection, metadata))


class _Canvas:
    """One image at its size in the page, under whatever is drawn on it."""

    def __init__(self, image: np.ndarray, metadata: Metadata):
        self._original_size = image.shape[:2]
        self._size = _page_size(*self._original_size)
        self._image = resize(image, *self._size, smooth=True)
        self._metadata = metadata

    def input(self, name: str) -> Picture:
        height, width = self._original_size
        return Picture(
            "Input", f"{width} × {height} pixels", f"The image {name}", _jpeg(self._image)
        )

    def panoptic(self, title: str, segments: Segments, name: str) -> Picture:
        metadata = self._metadata
        colors = segment_colors(segments.info, metadata.thing_colors, metadata.stuff_colors)
        things = sum(bool(s["isthing"]) for s in segments.info)
        caption = f"{things} thing and {len(segments.info) - things} stuff segments"
        picture = self._segments(segments.ids, colors)
        return Picture(title, caption, f"{title} of {name}: {caption}", picture)

    def semantic(self, title: str, labels: np.ndarray, truth: np.ndarray, name: str) -> Picture:
        """Args: int [H,W] both."""
        known = truth != VOID
        caption = "no true label in this image"
        if known.any():
            caption = f"{100 * (labels == truth)[known].mean():.1f} % of the pixels right"
        colors = dict(enumerate(map(tuple, self._metadata.stuff_colors)))
        picture = self._segments(labels, colors)
        return Picture(title, caption, f"{title} of {name}: {caption}", picture)

    def region(self, weights: np.ndarray, label: int, name: str) -> Picture:
        """Args: float [h,w] of sum 1."""
        shrink = REGION_SIDE / max(self._size)
        size = [max(1, round(side * shrink)) for side in self._size]
        picture = heat_map(weights, resize(self._image, *size, smooth=True))
        class_name = self._metadata.stuff_classes[label]
        peak = float(weights.max())
        caption = f"max {peak:.2g} ({peak * weights.size:.0f}×)"
        alt = f"Soft object region of {class_name} in {name}, {caption}"
        color = css_color(self._metadata.stuff_colors[label])
        return Picture(class_name, caption, alt, _jpeg(picture), color)

    def _segments(self, ids: np.ndarray, colors: dict[int, Color]) -> str:
        ids = resize(ids.astype(np.int32), *self._size, smooth=False)
        return _jpeg(draw_segments(self._image, ids, colors))


def _page_size(height: int, width: int) -> tuple[int, int]:
    """Small images grow by a whole factor, so that every label keeps its square pixels."""
    if max(height, width) > MAX_SIDE:
        factor = MAX_SIDE / max(height, width)
    else:
        factor = max(1, min(-(-MIN_SIDE // min(height, width)), MAX_SIDE // max(height, width)))
    return max(1, round(height * factor)), max(1, round(width * factor))


def _legend(truth: Segments, inspection: Inspection, metadata: Metadata) -> list[tuple[str, str]]:
    segments = [*truth.info, *inspection.panoptic.info]
    things = sorted({s["category_id"] for s in segments if s["isthing"]})
    stuff = {s["category_id"] for s in segments if not s["isthing"]}
    for labels in (inspection.coarse, inspection.refined):
        if labels is not None:
            stuff.update(np.unique(labels).tolist())
    return [
        *((metadata.thing_classes[k], css_color(metadata.thing_colors[k])) for k in things),
        *((metadata.stuff_classes[k], css_color(metadata.stuff_colors[k])) for k in sorted(stuff)),
    ]


def css_color(color: Color) -> str:
    """The colour as CSS writes it."""
    return "rgb({},{},{})".format(*(int(c) for c in color))


def _jpeg(picture: np.ndarray) -> str:
    """Args: uint8 [H,W,3] RGB. Returns: a data URI."""
    buffer = io.BytesIO()
    # Full chroma: thin outlines between saturated colours stay sharp.
    Image.fromarray(picture).save(buffer, "JPEG", quality=86, subsampling=0, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
