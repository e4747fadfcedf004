"""
Reads VGG Image Annotator 1 and 2: one JSON file for all images.

The file contains exported annotations or a saved project. Each region has a shape, with coordinates
in pixels, and attributes; one attribute is the class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import degrees
from pathlib import Path

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.other_tools import read_export, unreadable

from .annotated_image import AnnotatedImage, Segment
from .masks import ellipse, is_traced, mask_of_polygons, rectangle
from .reading import Annotations, image_file, read_each, require_images

_PROJECT = "_via_img_metadata"
_LABEL = "label"  # the class, whatever other attributes there are
_CLASS = (_LABEL, "class", "name", "type", "category", "object")  # usual names
_WITHOUT_AREA = ("point", "polyline")
_ONLY = "object"  # the class of regions without attributes


def read_via(source: Path, images: Path | None, polygons: str | None = None) -> Annotations:
    """Return the annotated images of a VIA JSON."""
    folder = require_images(images, source)
    content = read_export(source)
    project = content.get(_PROJECT, content) if isinstance(content, dict) else {}
    entries = [*project.values()]
    if not entries or not all(
        isinstance(e, dict) and {"filename", "regions"} <= {*e} for e in entries
    ):
        fault = "not a VIA 1 or 2 JSON, in which each image has filename and regions"
        hint = 'In VIA, export "as JSON", or export "as COCO" and give --from coco'
        raise unreadable(source, content, f"{source}: {fault}. {hint}.", "via")
    key = _class_attribute(source, [r for entry in entries for r in _regions(entry)])
    return Annotations(
        [(f"{source}: image {entry['filename']!r:.200}", entry) for entry in entries],
        lambda entry: image_file(folder, [entry["filename"]]),
        partial(_read, key=key, polygons=polygons),
    )


def _regions(entry: dict) -> Sequence[dict]:
    regions = entry["regions"]  # VIA 1 writes number -> region
    return [*regions.values()] if isinstance(regions, dict) else regions


def _class_attribute(source: Path, regions: Sequence[dict]) -> str | None:
    attributes = (region.get("region_attributes") or {} for region in regions)
    given = dict.fromkeys(key for a in attributes for key, value in a.items() if value)
    named = ([key for key in given if key.lower() in names] for names in ([_LABEL], _CLASS))
    chosen = next((keys for keys in named if len(keys) == 1), [*given])
    if len(chosen) > 1:
        raise UserError(
            f"{source}: it is unclear which attribute is the class: {', '.join(sorted(given))}. "
            f"In VIA, rename the class attribute to {_LABEL}."
        )
    return chosen[0] if chosen else None


def _read(
    image: AnnotatedImage, entry: dict, key: str | None, polygons: str | None
) -> AnnotatedImage:
    regions = [(f"region {n}", region) for n, region in enumerate(_regions(entry))]
    names = [region["shape_attributes"]["name"] for _, region in regions]
    left_out = [name for name in names if name in _WITHOUT_AREA]
    drawn = [r for r, name in zip(regions, names, strict=True) if name not in _WITHOUT_AREA]
    segment = partial(_segment, image=image, key=key, polygons=polygons)
    return replace(image, segments=[*read_each(drawn, segment)], left_out=left_out)


def _segment(region: dict, image: AnnotatedImage, key: str | None, polygons: str | None) -> Segment:
    value = (region.get("region_attributes") or {}).get(key) if key else _ONLY
    if isinstance(value, Mapping):  # the attribute has check boxes
        value = next((name for name, is_set in value.items() if is_set), None)
    if not value:
        raise UserError(f"the class attribute {key!r} is not set")
    traced = False
    shape, size = region["shape_attributes"], (image.height, image.width)
    match kind := shape["name"]:
        case "polygon":
            points = [*zip(shape["all_points_x"], shape["all_points_y"], strict=True)]
            mask = mask_of_polygons([points], *size, polygons)
            traced = is_traced(points)
        case "rect":
            x, y = shape["x"], shape["y"]
            mask = rectangle((x, y, x + shape["width"], y + shape["height"]), *size)
        case "circle" | "ellipse":
            radii = [shape.get("rx", shape.get("r")), shape.get("ry", shape.get("r"))]
            turned = degrees(shape.get("theta", 0))
            mask = ellipse((shape["cx"], shape["cy"]), radii, *size, turned)
        case _:
            raise UserError(f"unknown shape {kind}; expected polygon, rect, circle or ellipse")
    return Segment(str(value), mask, is_box=kind == "rect", is_traced=traced)
