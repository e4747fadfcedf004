"""
CVAT's own XML, "CVAT for images 1.1": https://docs.cvat.ai/docs/dataset_management/formats/

The masks of shapes equal CVAT's own mask exports: polygons, boxes and ellipses are filled, brush
masks are copied. A shape covers those of lower ``z_order``, and earlier shapes of equal order.
Shapes of a group with the same label are parts of an object. Tags have no pixels and are skipped.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
from defusedxml.ElementTree import ParseError, parse

from ocr_panoptic.errors import UserError

from .annotated_image import AnnotatedImage, Segment
from .reading import Annotations, check_size, image_file, read_each, require_images
from .shapes import ellipse, join_parts, placed, polygon, rectangle

ROOT = "annotations"
XML, IMAGES = "annotations.xml", "images"  # names in an export with images
FRAME_SUFFIXES = (".PNG", ".png", ".jpg")  # CVAT writes .PNG; other tools extract .png and .jpg
_WITHOUT_AREA = ("polyline", "points", "cuboid", "skeleton")


def read_cvat(source: Path, images: Path | None) -> Annotations:
    """
    Find the images in a CVAT XML.

    Args:
        source: XML, or the unpacked export that holds it.
        images: folder that the XML's names are relative to; the default is "images" beside the XML.
    """
    path = _xml_in(source) if source.is_dir() else source
    if images is None and (path.parent / IMAGES).is_dir():
        images = path.parent / IMAGES
    images = require_images(images, f"{path}")
    elements = _image_elements(path)
    places = [(f"{path}: image {element.get('name', '')!r}", element) for element in elements]
    return Annotations(
        places,
        partial(_find, images),
        _read_image,
        lambda element: [s.get("label") for s in element if s.tag in _MASKS and s.get("label")],
    )


def _xml_in(folder: Path) -> Path:
    found = sorted(folder.glob("*.xml"))
    if (folder / XML).is_file() or not found:
        return folder / XML
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise UserError(f"{folder}: holds {len(found)} XML files ({names}). Name one of them.")
    return found[0]


def _image_elements(path: Path) -> list[Element]:
    try:
        root = parse(path, forbid_dtd=True).getroot()
    except (ParseError, LookupError, ValueError) as error:  # LookupError: unknown encoding
        raise UserError(f"{path}: cannot be read as XML ({error}).") from error
    if root.tag != ROOT:
        hint = " Is it Pascal VOC? Its XML files have only boxes; --from voc reads its PNGs."
        hint = hint if root.tag == "annotation" else ""
        raise UserError(f"{path}: its root is <{root.tag[:80]}>, expected <{ROOT}>.{hint}")
    if root.find("track") is not None:
        raise UserError(
            f'{path}: has tracks of a video. Export it as "CVAT for images 1.1", which lists the '
            "shapes of every frame."
        )
    elements = root.findall("image")
    if not elements:
        raise UserError(f'{path}: has no image. Is it an export as "CVAT for images 1.1"?')
    return elements


def _find(folder: Path, element: Element) -> AnnotatedImage:
    name, subset = element.get("name", ""), element.get("subset")
    # In a project an image may lie in the folder of its subset; a frame's name has no suffix.
    stems = [name, f"{subset}/{name}"] if subset and name else [name]
    names = stems + [stem + suffix for stem in stems for suffix in FRAME_SUFFIXES if name]
    image = image_file(folder, names)
    check_size(image, int(element.get("height", 0)), int(element.get("width", 0)))
    return image


def _read_image(image: AnnotatedImage, element: Element) -> AnnotatedImage:
    left_out = [shape.tag for shape in element if shape.tag in _WITHOUT_AREA]
    places = (
        (f"{shape.tag} {number} ({shape.get('label')!r})", shape)
        for number, shape in enumerate(element)
        if shape.tag not in ("tag", *_WITHOUT_AREA)
    )
    shapes = sorted(read_each(places, partial(_read_shape, image)), key=lambda shape: shape[0])
    segments = join_parts((group, segment) for _, group, segment in shapes)
    return replace(image, segments=segments, left_out=left_out)


def _read_shape(image: AnnotatedImage, shape: Element) -> tuple[int, int | None, Segment]:
    """Return a shape's z_order, group and segment."""
    kind, label = shape.tag, shape.get("label")
    if not label:
        raise UserError("has no label")
    if kind not in _MASKS:
        raise UserError(f"is of an unknown kind; there are {', '.join(_MASKS)}")
    mask = _MASKS[kind](shape.attrib, image.height, image.width)
    group = int(shape.get("group_id", 0)) or None
    return int(shape.get("z_order", 0)), group, Segment(label, mask, is_box=kind == "box")


Attributes = Mapping[str, str]


def _polygon(attributes: Attributes, height: int, width: int) -> dict:
    points = [list(map(float, pair.split(","))) for pair in attributes["points"].split(";")]
    return polygon(points, height, width)


def _box(attributes: Attributes, height: int, width: int) -> dict:
    corners = [float(attributes[key]) for key in ("xtl", "ytl", "xbr", "ybr")]
    return rectangle(corners, height, width, float(attributes.get("rotation", 0)))


def _ellipse(attributes: Attributes, height: int, width: int) -> dict:
    cx, cy, rx, ry = (float(attributes[key]) for key in ("cx", "cy", "rx", "ry"))
    return ellipse((cx, cy), (rx, ry), height, width, float(attributes.get("rotation", 0)))


def _mask(attributes: Attributes, height: int, width: int) -> dict:
    left, top, columns, rows = (int(attributes[key]) for key in ("left", "top", "width", "height"))
    return placed(decode_runs(attributes["rle"], rows, columns), left, top, height, width)


_MASKS = {"polygon": _polygon, "box": _box, "ellipse": _ellipse, "mask": _mask}


def decode_runs(text: str, height: int, width: int) -> np.ndarray:
    """
    Return a mask as bool [height, width].

    Args:
        text: lengths of runs of pixels, row by row, alternately outside and inside the mask; the
            first run lies outside.
    """
    lengths = [int(number) for number in text.split(",")]
    if min(lengths) < 0 or sum(lengths) != height * width:
        raise UserError(f"a mask of {width}x{height} pixels has runs of {sum(lengths)}")
    inside = np.arange(len(lengths)) % 2 == 1
    return np.repeat(inside, lengths).reshape(height, width)
