"""
A page about a data set: faults found by the data check, classes, and images with their labels.

Shape letters: H, W size of an image.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, Metadata

from ocr_panoptic.data.catalog import registered_metadata
from ocr_panoptic.data.data_check import check_data_sets
from ocr_panoptic.data.faults import gathering
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import read_segment_ids
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.formats.labels import has_labels, read_labels
from ocr_panoptic.formats.pictures import Color, read_picture
from ocr_panoptic.predict.overlays import draw_segments, resize_picture, segment_colors
from ocr_panoptic.progress import imap_with_progress

from .figures import css_color, jpeg_source, page_size
from .templates import TEMPLATES

SIDE = 320  # longer side of a picture, pixels


class DataClass(NamedTuple):
    """A class of a data set; ``number`` is the class's category_id in the records."""

    name: str
    isthing: bool
    number: int
    color: Color


class ViewedImage(NamedTuple):
    """
    An image and its ground truth, as the page about a data set shows them.

    Attributes:
        size: width and height in pixels.
        image, truth: pictures as data URIs; ``truth`` is "" if the image has no labels.
        void: number of pixels without a class.
        segments: (isthing, category_id, number of pixels) of each segment.
        fault: reason why the image or its labels cannot be used; "" if both can.
    """

    name: str
    size: tuple[int, int] = (0, 0)
    image: str = ""
    truth: str = ""
    void: int = 0
    segments: Sequence[tuple[bool, int, int]] = ()
    fault: str = ""


def write_data_page(
    dataset: str, output: Path, num_images: int, workers: int | None = None
) -> list[str]:
    """
    Write a self-contained HTML page about a registered data set; return the data set's faults.

    Args:
        num_images: maximum number of images to show, evenly spread over the data set; the classes'
            statistics come from these images only.
    """
    metadata = registered_metadata(dataset)
    faults: list[str] = []
    with gathering(faults):
        check_data_sets([dataset], workers)
    records = DatasetCatalog.get(dataset)
    if not metadata.get("stuff_classes") or not any(map(has_labels, records)):
        raise UserError(
            f"Data set {dataset!r} has no labels to show: neither panoptic nor semantic PNGs."
        )
    places = np.linspace(0, len(records) - 1, min(num_images, len(records))).astype(int)
    classes = data_classes(metadata)
    view = partial(view_image, classes=classes, label_map=metadata.get("label_map"))
    shown = [records[place] for place in places]
    seen = list(imap_with_progress(view, shown, "drawing", workers))
    faults += [s.fault for s in seen if s.fault and not any(s.name in fault for fault in faults)]
    folder = os.path.commonpath([os.path.dirname(s.name) for s in seen])
    seen = [s._replace(name=os.path.relpath(s.name, folder)) for s in seen if not s.fault]
    sizes = sorted({s.size for s in seen}, key=lambda size: size[0] * size[1])
    pixels = sum(width * height for width, height in (s.size for s in seen))
    page = TEMPLATES.get_template("data_page.html").render(
        dataset=dataset,
        total=len(records),
        images=seen,
        sizes=[f"{width} x {height}" for width, height in sizes],
        void=100 * sum(s.void for s in seen) / max(1, pixels),
        is_panoptic=bool(metadata.get("thing_classes")),
        classes=class_rows(classes, seen),
        faults=faults,
    )
    write_text(output, page)
    return faults


def data_classes(metadata: Metadata) -> list[DataClass]:
    """
    Return the thing classes of a data set, then its stuff classes.

    If there are thing classes, stuff class 0 is left out, because it stands for all things.
    """
    found = []
    for kind in ("thing", "stuff"):
        names, colors = metadata.get(f"{kind}_classes") or (), metadata.get(f"{kind}_colors") or ()
        for number, (name, color) in enumerate(zip(names, colors, strict=True)):
            if not (kind == "stuff" and number == 0 and metadata.get("thing_classes")):
                color = tuple(int(value) for value in color)
                found.append(DataClass(name, kind == "thing", number, color))
    return found


def view_image(
    record: Mapping[str, Any], classes: Sequence[DataClass], label_map: Mapping[int, int] | None
) -> ViewedImage:
    """
    Read an image of a data set and its ground truth; return both as pictures for the page.

    If one of the files cannot be used, the result has only a name and the fault. ``label_map`` maps
    the labels in semantic label files to class numbers; None if the labels are class numbers.
    """
    name = record["file_name"]
    try:
        image = read_picture(name, "RGB")
        ids, segments = _truth(record, classes, label_map)
        if ids is not None and ids.shape != image.shape[:2]:
            raise UserError(
                f"{name} has {image.shape[1]}x{image.shape[0]} pixels, but its annotation has "
                f"{ids.shape[1]}x{ids.shape[0]} (width x height)."
            )
    except (OSError, ValueError) as error:
        return ViewedImage(name, fault=str(error))
    height, width = image.shape[:2]
    small = page_size((height, width), min(SIDE, max(height, width)))
    picture = resize_picture(image, *small, smooth=True)
    found = ViewedImage(name, (width, height), jpeg_source(picture))
    if ids is None:
        return found
    things, stuff = (
        {c.number: c.color for c in classes if c.isthing == kind} for kind in (True, False)
    )
    shown = resize_picture(ids.astype(np.int32), *small, smooth=False)
    drawn = draw_segments(picture, shown, segment_colors(segments, things, stuff), opacity=0.6)
    listed = {s["id"]: (bool(s["isthing"]), s["category_id"]) for s in segments}
    areas = dict(zip(*(part.tolist() for part in np.unique(ids, return_counts=True))))
    return found._replace(
        truth=jpeg_source(drawn),
        void=sum(area for i, area in areas.items() if i not in listed),
        segments=[(*listed[i], area) for i, area in areas.items() if i in listed],
    )


def _truth(
    record: Mapping[str, Any], classes: Sequence[DataClass], label_map: Mapping[int, int] | None
) -> tuple[np.ndarray | None, list[dict]]:
    """
    Return a record's true segment ids, int [H, W], and segments; (None, []) without labels.

    In a semantic data set, each class is one segment.
    """
    if "pan_seg_file_name" in record:
        return read_segment_ids(record), record["segments_info"]
    if "sem_seg_file_name" not in record:  # a test split, whose labels are not published
        return None, []
    labels = read_labels(record["sem_seg_file_name"], label_map)
    return labels, [{"id": c.number, "isthing": False, "category_id": c.number} for c in classes]


def class_rows(classes: Sequence[DataClass], images: Sequence[ViewedImage]) -> list[dict[str, Any]]:
    """
    Return a table with a row for each class.

    "share" is the class's percentage of all pixels with a class; "area" is the median area of the
    class's segments in pixels.
    """
    total = max(1, sum(area for image in images for *_, area in image.segments))
    rows = []
    for c in classes:
        own = [
            [area for isthing, number, area in image.segments if (isthing, number) == c[1:3]]
            for image in images
        ]
        areas = [area for of_image in own for area in of_image]
        rows.append(
            {
                "name": c.name,
                "kind": ("stuff", "thing")[c.isthing],
                "color": css_color(c.color),
                "images": sum(map(bool, own)),
                "segments": len(areas),
                "share": 100 * sum(areas) / total,
                "area": float(np.median(areas)) if areas else None,
            }
        )
    return rows
