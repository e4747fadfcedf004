"""Predictions of any program, refined file by file: label PNGs, panoptic and instance results."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pycocotools.mask as mask_util
from tqdm import tqdm

from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.formats.files import read_json, write_json
from ocr_panoptic.formats.labels import read_label_png, write_label_png
from ocr_panoptic.formats.offsets import moved, source_pixels
from ocr_panoptic.formats.segment_runs import segment_statistics

from .offset_sources import Offsets


class Sources:
    """
    The pixels from which the pixels of predictions come.

    Args:
        offsets: of the images.
        scale: of the offsets.
    """

    def __init__(self, offsets: Offsets, scale: int):
        self._offsets, self._scale = offsets, scale

    def check(self, names: Sequence[str]) -> None:
        """Raises ValueError where an image of these names has no offsets."""
        self._offsets.names.check(names)

    def __call__(self, name: str, size: Sequence[int]) -> np.ndarray:
        """:func:`.source_pixels` of an image by its name and (H, W) of its prediction; ValueError
        where its offsets have another size."""
        found = self._offsets(name)
        if found.shape[:2] != tuple(size):
            raise UserError(
                f"{name}: the prediction has {size[1]}x{size[0]} pixels, the offsets "
                f"{found.shape[1]}x{found.shape[0]} (width x height). Resize the prediction to its "
                "image."
            )
        return source_pixels(found, self._scale)


def refine_files(
    predictions: Path, output: Path, offsets: Offsets, scale: int, names: Mapping[Any, str]
) -> int:
    """
    Args:
        predictions: a folder of label PNGs; a panoptic JSON, whose PNGs lie in the folder of its
            name without suffix; or a JSON list of instances in COCO's results format.
        output: of the same kind, each file whole or not at all.
        scale: of the offsets.
        names: of the images by the ids in a JSON that does not say them.

    Returns:
        the number of images

    Raises:
        FileNotFoundError: the predictions are not there.
        ValueError: they are broken or of another kind; an image has no offsets, or ones of another
            size; or the output would take the place of the predictions.
    """
    _check_place(predictions, output)
    sources = Sources(offsets, scale)
    if predictions.is_dir():
        return refine_labels(predictions, output, sources)
    content = read_json(predictions)
    names = {**offsets.name_of_id, **names}
    if isinstance(content, list):
        return refine_instances(content, predictions, output, sources, names)
    if isinstance(content, dict) and "annotations" in content:
        return refine_panoptic(content, predictions, output, sources, names)
    raise UserError(
        f"{predictions}: is no list of instances and no panoptic JSON with annotations. "
        "Of label PNGs name the folder."
    )


def refine_labels(folder: Path, output: Path, sources: Sources) -> int:
    """Every label PNG of a folder and those below, with the same labels."""
    files = sorted(folder.rglob("*.png"))
    if not files:
        raise MissingFileError(f"{folder}: holds no label PNGs")
    names = [file.relative_to(folder).with_suffix("").as_posix() for file in files]
    sources.check(names)
    for file, name in zip(tqdm(files, unit="image"), names, strict=True):
        labels = read_label_png(file)
        refined = moved(labels, sources(name, labels.shape))
        write_label_png(output / file.relative_to(folder), refined)
    return len(files)


def refine_panoptic(
    content: dict[str, Any],
    file: Path,
    output: Path,
    sources: Sources,
    names: Mapping[Any, str],
) -> int:
    """A panoptic JSON and its PNGs: segments move as a whole map, so that they stay apart. Each has
    its "area" and "bbox" counted anew; those that lose all pixels are left out."""
    annotations = content["annotations"]
    try:
        names = {**names, **dict(_names_of_images(content.get("images", ())))}
        named = [
            names.get(a["image_id"], PurePath(a["file_name"]).with_suffix("").as_posix())
            for a in annotations
        ]
        for annotation in annotations:
            _ = [segment["id"] for segment in annotation["segments_info"]]
            # One of another folder would be written over the prediction itself.
            if fault := next(file_name_faults(annotation["file_name"]), None):
                raise UserError(f"{file}: {fault}")
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: is no panoptic JSON ({error!r:.200})") from error
    sources.check(named)

    def refined(annotation: dict[str, Any], name: str) -> dict[str, Any]:
        ids = read_panoptic_png(file.with_suffix("") / annotation["file_name"])
        ids = moved(ids, sources(name, ids.shape))
        write_panoptic_png(output.with_suffix("") / annotation["file_name"], ids)
        shown = segment_statistics(ids)
        segments = [
            {**segment, **shown[segment["id"]]._asdict()}
            for segment in annotation["segments_info"]
            if segment["id"] in shown
        ]
        return {**annotation, "segments_info": segments}

    pairs = zip(tqdm(annotations, unit="image"), named, strict=True)
    write_json(output, {**content, "annotations": [refined(*pair) for pair in pairs]})
    return len(annotations)


def refine_instances(
    content: list[dict[str, Any]],
    file: Path,
    output: Path,
    sources: Sources,
    names: Mapping[Any, str],
) -> int:
    """Instances in COCO's results format, masks as compressed or uncompressed RLE: they move one by
    one; scores and boxes stay, those of a detector."""
    by_image: dict[Any, list[int]] = {}
    try:
        for i, instance in enumerate(content):
            (_, _), _ = instance["segmentation"]["size"], instance["segmentation"]["counts"]
            by_image.setdefault(instance["image_id"], []).append(i)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: expected instances with image_id and a segmentation as RLE ({error!r:.200})"
        ) from error
    if unnamed := [image for image in by_image if image not in names]:
        raise UserError(
            f"{file}: does not say which images its ids are of ({unnamed[0]!r:.100} ...). Name a "
            'JSON with "images" by --image-list.'
        )
    sources.check([names[image] for image in by_image])

    def refined(rle: dict[str, Any], at: np.ndarray) -> dict[str, Any]:
        if isinstance(rle["counts"], list):
            rle = mask_util.frPyObjects(rle, *rle["size"])
        found = mask_util.encode(np.asfortranarray(moved(mask_util.decode(rle), at)))
        return {"size": found["size"], "counts": found["counts"].decode("ascii")}

    found = list(content)
    for image, places in tqdm(by_image.items(), unit="image"):
        at = sources(names[image], content[places[0]]["segmentation"]["size"])
        for i in places:
            try:
                found[i] = {**content[i], "segmentation": refined(content[i]["segmentation"], at)}
            except (TypeError, ValueError) as error:
                raise UserError(f"{file}: instance {i} of image {image!r:.100}: {error}") from error
    write_json(output, found)
    return len(by_image)


def read_image_names(path: Path) -> dict[Any, str]:
    """The names of the images in a JSON of COCO's kind, by their ids.

    Raises:
        FileNotFoundError, ValueError: it is missing, broken, or lists no images.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not content.get("images"):
        raise UserError(f'{path}: has no list "images"')
    try:
        return dict(_names_of_images(content["images"]))
    except (KeyError, TypeError) as error:
        raise UserError(
            f'{path}: expected "images" with id and file_name ({error!r:.200})'
        ) from error


def _names_of_images(images: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, str]]:
    for image in images:
        yield image["id"], PurePath(image["file_name"]).with_suffix("").as_posix()


def _check_place(predictions: Path, output: Path) -> None:
    if not predictions.exists():
        raise MissingFileError(f"--predictions {predictions}: no such folder or file")
    ours, theirs = output.resolve(), predictions.resolve()
    if ours == theirs or theirs in ours.parents or ours.with_suffix("") == theirs.with_suffix(""):
        raise UserError(
            f"--output {output} is {predictions} or lies in it; name a place of its own, so that "
            "the predictions stay"
        )
    if predictions.is_file() and output.suffix != ".json":
        raise UserError(f"--output {output}: of {predictions.name} expected a name in .json")
