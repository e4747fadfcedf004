"""
Reads CVAT's XML, "CVAT for images 1.1": https://docs.cvat.ai/docs/dataset_management/formats/

The masks equal CVAT's own mask exports: polygons, boxes and ellipses are filled, and brush masks
are copied. A shape covers shapes of lower ``z_order``, and earlier shapes of equal ``z_order``.
Shapes with the same group and label are parts of one object. Tags have no pixels and are skipped.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree.ElementTree import Element

from defusedxml.ElementTree import ParseError, parse
from pycocotools import mask as mask_util

from ocr_panoptic.errors import MissingFileError, UserError

from .annotated_image import AnnotatedImage, Segment, join_parts
from .masks import ellipse, mask_of_polygons, mask_of_rle, placed, rectangle
from .reading import Annotations, check_size, image_file, read_each, require_images

XML, IMAGES = "annotations.xml", "images"  # names in an export with images
FRAME_SUFFIXES = (".PNG", ".png", ".jpg")  # suffixes of video frames; CVAT writes .PNG
_WITHOUT_AREA = ("polyline", "points", "cuboid", "skeleton")


def read_cvat(source: Path, images: Path | None) -> Annotations:
    """Return the annotated images of a CVAT XML file, or of the folder of an unpacked export."""
    path = source
    if source.is_dir():
        listed = sorted(source.glob("*.xml"))
        path = listed[0] if len(listed) == 1 else source / XML
    if not path.is_file():
        raise MissingFileError(f"{path}: file not found. Give the XML file of the export.")
    if images is None and (path.parent / IMAGES).is_dir():
        images = path.parent / IMAGES
    folder = require_images(images, path)

    def find(element: Element) -> AnnotatedImage:
        name, subset = element.get("name", ""), element.get("subset")
        # In a project an image may lie in its subset's folder; a video frame's name has no suffix.
        stems = [name, f"{subset}/{name}"] if subset and name else [name]
        names = stems + [stem + suffix for stem in stems for suffix in FRAME_SUFFIXES if name]
        image = image_file(folder, names)
        check_size(image, element.get("height"), element.get("width"))
        return image

    elements = _image_elements(path)
    places = [(f"{path}: image {element.get('name', '')!r}", element) for element in elements]
    return Annotations(places, find, _read_image, _drafts)


def _drafts(element: Element) -> list[Segment]:
    shapes = [shape for shape in element if shape.tag not in ("tag", *_WITHOUT_AREA)]
    return [Segment(label, {}) for shape in shapes if (label := shape.get("label"))]


def _image_elements(path: Path) -> list[Element]:
    try:
        root = parse(path, forbid_dtd=True).getroot()
    except (ParseError, LookupError, ValueError) as error:  # LookupError: unknown encoding
        raise UserError(f"{path}: not valid XML ({error}).") from error
    if root.find("track") is not None:
        raise UserError(
            f'{path}: contains video tracks. Export it as "CVAT for images 1.1", which lists the '
            "shapes of every frame."
        )
    elements = root.findall("image")
    if not elements:
        raise UserError(
            f'{path}: <{root.tag[:80]}> contains no images. Export it as "CVAT for images 1.1".'
        )
    return elements


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
    """Return a shape's ``z_order``, its group (None if it is in no group) and its segment."""
    kind, label, size = shape.tag, shape.attrib["label"], (image.height, image.width)

    def numbers(*keys: str) -> list[float]:
        return [float(shape.attrib[key]) for key in keys]

    rotation = float(shape.get("rotation", 0))
    match kind:
        case "polygon":
            points = [pair.split(",") for pair in shape.attrib["points"].split(";")]
            mask = mask_of_polygons([points], *size)
        case "box":
            mask = rectangle(numbers("xtl", "ytl", "xbr", "ybr"), *size, rotation)
        case "ellipse":
            mask = ellipse(numbers("cx", "cy"), numbers("rx", "ry"), *size, rotation)
        case "mask":
            left, top, columns, rows = map(int, numbers("left", "top", "width", "height"))
            counts = [int(number) for number in shape.attrib["rle"].split(",")]
            # The runs go along the rows, whereas COCO's go down the columns.
            turned = mask_of_rle({"size": [columns, rows], "counts": counts}, columns, rows)
            mask = placed(mask_util.decode(turned).T > 0, left, top, *size)
        case _:
            raise UserError(f"unknown shape {kind}; expected polygon, box, ellipse or mask")
    group = int(shape.get("group_id", 0)) or None
    return int(shape.get("z_order", 0)), group, Segment(label, mask, is_box=kind == "box")
