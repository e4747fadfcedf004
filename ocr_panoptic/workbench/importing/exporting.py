"""Segments as files that annotation tools import, so that a person corrects instead of draws.

Every function yields the text of a file, piece by piece.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from pycocotools import mask as rle

from ocr_panoptic.formats.files import replacing
from ocr_panoptic.formats.pictures import Color

from .annotated_image import AnnotatedImage, Segment
from .brush import encode_brush
from .cvat import encode_runs

# CVAT finds an image by its name, and where none has that name silently takes the frame of this
# number. No image has one from here on.
NO_FRAME = 10**9


@dataclass(frozen=True)
class Project:
    """A tool's project as it is to be.

    Attributes:
        colors: class -> its colour, in the order of the classes.
        frames: the images are frames of a video, and their names the numbers of these.
        from_name, to_name, data_key: of Label Studio's <BrushLabels> and <Image>, and the data that
            the image is in.
        url_prefix: of Label Studio's images, before their names.
        model_version: of the predictions.
    """

    colors: dict[str, Color]
    frames: bool = False
    from_name: str = "label"
    to_name: str = "image"
    data_key: str = "image"
    url_prefix: str = "/data/local-files/?d="
    model_version: str = "ocr_panoptic"


def cvat_xml(images: Iterable[AnnotatedImage], project: Project) -> Iterator[str]:
    """ "CVAT for images 1.1": brush masks, whose attribute "score" CVAT keeps where the label has
    one of that name."""
    labels = "".join(
        f"<label><name>{escape(name)}</name><attributes><attribute><name>score</name>"
        "<input_type>text</input_type></attribute></attributes></label>"
        for name in project.colors
    )
    yield '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n'
    yield f"<meta><task><labels>{labels}</labels></task></meta>\n"
    for place, image in enumerate(images):
        number = int(PurePosixPath(image.name).stem) if project.frames else NO_FRAME + place
        size = f'width="{image.width}" height="{image.height}"'
        yield f'<image id="{number}" name={quoteattr(image.name)} {size}>\n'
        for segment in image.segments:
            yield from _cvat_mask(segment)
        yield "</image>\n"
    yield "</annotations>\n"


def _cvat_mask(segment: Segment) -> Iterator[str]:
    left, top, width, height = (int(number) for number in rle.toBbox(segment.mask))
    if not width:
        return
    runs = encode_runs(segment.pixels()[top : top + height, left : left + width])
    yield (
        f'<mask label={quoteattr(segment.label)} source="auto" occluded="0" rle="{runs}" '
        f'left="{left}" top="{top}" width="{width}" height="{height}" z_order="0">'
    )
    if segment.score is not None:
        yield f'<attribute name="score">{segment.score:.4f}</attribute>'
    yield "</mask>\n"


def coco_json(images: Iterable[AnnotatedImage], project: Project) -> Iterator[str]:
    """COCO's instance JSON with compressed RLE, of all classes; "COCO 1.0" of CVAT takes it.

    Categories count from 1: CVAT takes an annotation of category 0 for one without label.
    """
    numbers = {name: number for number, name in enumerate(project.colors, 1)}
    listed, count = [], 0
    yield '{"annotations": ['
    for image_id, image in enumerate(images, 1):
        size = {"width": image.width, "height": image.height}
        listed.append({"id": image_id, "file_name": image.name, **size})
        for segment in image.segments:
            area = int(rle.area(segment.mask))
            if not area:
                continue
            count += 1
            counts = segment.mask["counts"].decode("ascii")
            annotation = {
                "id": count,
                "image_id": image_id,
                "category_id": numbers[segment.label],
                "segmentation": {"size": [image.height, image.width], "counts": counts},
                "area": area,
                "bbox": rle.toBbox(segment.mask).tolist(),
                "iscrowd": int(segment.is_crowd),
                **({} if segment.score is None else {"score": round(segment.score, 4)}),
            }
            yield f"{',' if count > 1 else ''}\n{json.dumps(annotation)}"
    categories = [
        {"id": number, "name": name, "supercategory": ""} for name, number in numbers.items()
    ]
    yield f'\n],\n"images": {json.dumps(listed)},\n"categories": {json.dumps(categories)}}}\n'


def label_studio_json(images: Iterable[AnnotatedImage], project: Project) -> Iterator[str]:
    """Tasks of Label Studio with a prediction each, in brush masks."""
    separator = "[\n"
    for image in images:
        yield separator + json.dumps(_label_studio_task(image, project))
        separator = ",\n"
    yield "\n]\n" if separator == ",\n" else "[]\n"


def _label_studio_task(image: AnnotatedImage, project: Project) -> dict[str, Any]:
    results, weights, total = [], 0, 0.0
    for place, segment in enumerate(image.segments):
        area = int(rle.area(segment.mask))
        if not area:
            continue
        value = {"format": "rle", "rle": encode_brush(segment.pixels())}
        result = {
            "id": f"segment{place + 1}",
            "type": "brushlabels",
            "from_name": project.from_name,
            "to_name": project.to_name,
            "original_width": image.width,
            "original_height": image.height,
            "image_rotation": 0,
            "value": {**value, "brushlabels": [segment.label]},
        }
        if segment.score is not None:
            result["score"] = round(segment.score, 4)
            weights, total = weights + area, total + area * segment.score
        results.append(result)
    prediction: dict[str, Any] = {"model_version": project.model_version, "result": results}
    if weights:  # mean of all pixels, by which Label Studio can order its tasks
        prediction["score"] = round(total / weights, 4)
    url = project.url_prefix + quote(image.name)
    return {"data": {project.data_key: url}, "predictions": [prediction]}


EXPORTS: dict[str, Callable[[Iterable[AnnotatedImage], Project], Iterator[str]]] = {
    "cvat": cvat_xml,
    "coco": coco_json,
    "label-studio": label_studio_json,
}


def write_export(kind: str, images: Iterable[AnnotatedImage], project: Project, path: Path) -> None:
    """Write a file, whole or not at all.

    Args:
        kind: a key of :data:`EXPORTS`.
    """
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.writelines(EXPORTS[kind](images, project))


def project_setup(kind: str, project: Project) -> str:
    """The text that makes a project with these labels: of CVAT the labels as "Raw", of Label Studio
    the labelling interface as "Code"."""
    colors = {name: f"#{r:02x}{g:02x}{b:02x}" for name, (r, g, b) in project.colors.items()}
    if kind == "label-studio":
        return _label_studio_config(colors, project)
    return json.dumps(
        [{"name": name, "color": color, "attributes": []} for name, color in colors.items()]
    )


def _label_studio_config(colors: dict[str, str], project: Project) -> str:
    names = [
        quoteattr(name) for name in (project.from_name, project.to_name, f"${project.data_key}")
    ]
    lines = [
        "<View>",
        f'  <Image name={names[1]} value={names[2]} zoom="true"/>',
        f"  <BrushLabels name={names[0]} toName={names[1]}>",
        *(
            f'    <Label value={quoteattr(name)} background="{color}"/>'
            for name, color in colors.items()
        ),
        "  </BrushLabels>",
        "</View>",
    ]
    return "\n".join(lines)
