"""Files of ``ocr-panoptic predict`` as annotated images, for annotation tools."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocr_panoptic.data.classes import faults_of_class
from ocr_panoptic.data.faults import raise_if_any
from ocr_panoptic.data.panoptic.annotations import file_name_faults, read_panoptic_json
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.files import MAX_JSON_BYTES
from ocr_panoptic.formats.labels import read_label_png
from ocr_panoptic.formats.pictures import VIDEO_SUFFIXES, Color
from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment
from ocr_panoptic.workbench.importing.masks import masks_of_map
from ocr_panoptic.workbench.importing.reading import each, read_object

PANOPTIC, SEMANTIC = "panoptic.json", "labels.json"
RUN = "run.json"  # of .folder, which imports PyTorch


@dataclass(frozen=True)
class Predictions:
    """
    Attributes:
        colors: of the classes, by name.
        count: number of images.
        images: one at a time. ``file`` is their name alone: the images are not looked at. A
            segment's score is that of an object, else the mean confidence of its pixels, where the
            JSON has them.
        model_version: names the weights, as far as they are known.
        frames: whether they are frames of a video, whose names are their numbers.
    """

    colors: dict[str, Color]
    count: int
    images: Iterator[AnnotatedImage]
    model_version: str
    frames: bool


def read_predictions(path: Path) -> Predictions:
    """
    Args:
        path: folder of ``ocr-panoptic predict``; or any panoptic JSON, whose PNGs lie in the folder
            of its name without suffix.

    Raises:
        FileNotFoundError: nothing of the kind is there.
        ValueError, DataFaults: a JSON cannot be used; from ``images`` at the end: PNGs that are
            missing, broken, or contradict it.
    """
    if (path / SEMANTIC).is_file():
        return _read_semantic(path)
    file = path / PANOPTIC if path.is_dir() else path
    if not file.is_file():
        raise MissingFileError(
            f"--predictions {path}: expected a panoptic JSON, or a folder of ocr-panoptic predict "
            f"with {PANOPTIC} or {SEMANTIC}, which it writes at its end."
        )
    return _read_panoptic(file)


def _read_panoptic(path: Path) -> Predictions:
    content = read_panoptic_json(path)
    categories = {category.id: category for category in content.categories}

    def read(image: Any) -> AnnotatedImage:
        png = path.with_suffix("") / image.png_name
        masks = _masks(png, read_panoptic_png(png), (image.height, image.width))
        if masks.keys() != (known := {segment["id"] for segment in image.segments}):
            wrong = sorted(masks.keys() ^ known)[:5]
            raise UserError(f"{png}: ids that only the PNG or only {path} has: {wrong}.")
        segments = []
        for segment in image.segments:
            category = categories[segment["category_id"]]
            score = segment.get("score", segment.get("confidence"))
            segments.append(
                Segment(
                    category.name,
                    masks[segment["id"]],
                    instance=category.isthing,
                    is_crowd=bool(segment.get("iscrowd", 0)),
                    score=None if score is None else float(score),
                )
            )
        name = image.file_name
        return AnnotatedImage(Path(name), name, image.height, image.width, segments)

    colors = {category.name: category.color for category in content.categories}
    images = each(content.images, read)
    return Predictions(colors, len(content.images), images, *_run(path.parent))


def _read_semantic(folder: Path) -> Predictions:
    path = folder / SEMANTIC
    content = read_object(path, MAX_JSON_BYTES)
    try:
        names = {entry["label"]: entry["name"] for entry in content["classes"]}
        colors = {entry["name"]: tuple(entry["color"]) for entry in content["classes"]}
        faults = [
            f"{path}: class {entry['name']!r}: {fault}"
            for entry in content["classes"]
            for fault in faults_of_class(entry["name"], entry["color"])
        ]
        keys = ("file_name", "labels", "height", "width", "segments")
        images = [tuple(image[key] for key in keys) for image in content["images"]]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: is no {SEMANTIC} of ocr-panoptic predict ({type(error).__name__}: {error})."
        ) from error
    for file_name, png, *_ in images:
        faults += [f"{path}: {f}" for n in (file_name, png) for f in file_name_faults(n)]
    raise_if_any(faults)

    def read(image: tuple) -> AnnotatedImage:
        file_name, name, height, width, listed = image
        png = folder / "labels" / name
        masks = _masks(png, read_label_png(png).astype(np.int32) + 1, (height, width))
        if unknown := [number - 1 for number in masks if number - 1 not in names]:
            raise UserError(f"{png}: the labels {unknown[:5]} are of no class in {path}.")
        scores = {segment["label"]: segment["confidence"] for segment in listed}
        segments = [
            Segment(names[number - 1], mask, instance=False, score=scores.get(number - 1))
            for number, mask in masks.items()
        ]
        return AnnotatedImage(Path(file_name), file_name, height, width, segments)

    return Predictions(colors, len(images), each(images, read), *_run(folder))


def _masks(png: Path, values: np.ndarray, size: tuple[int, int]) -> dict[int, dict]:
    if values.shape != size:
        raise UserError(
            f"{png}: has {values.shape[1]}x{values.shape[0]} pixels, expected {size[1]}x{size[0]} "
            "(width x height)."
        )
    return dict(masks_of_map(values))


def _run(folder: Path) -> tuple[str, bool]:
    """Version of the model, and whether the images are frames."""
    run = read_object(folder / RUN) if (folder / RUN).is_file() else {}
    weights, source = (str(run.get(key, "")) for key in ("weights_file_sha256", "input"))
    return f"ocr_panoptic {weights[:12]}".strip(), source.lower().endswith(VIDEO_SUFFIXES)
