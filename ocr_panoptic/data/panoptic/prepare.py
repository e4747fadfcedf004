"""Preparation of a data set in COCO panoptic format for Panoptic-FPN.

Panoptic-FPN trains on instance annotations and on semantic labels. Both are derived from the
panoptic PNGs and written beside a manifest that :mod:`ocr_panoptic.data.prepared` reads:

    dataset.json                  the manifest: name, categories, where everything lies
    panoptic_<split>.json         the panoptic annotations, areas and boxes from the PNGs
    instances_<split>.json        COCO instance annotations, RLE masks
    sem_seg_<split>/<name>.png    0 = things, 1..S = stuff by ascending category id, 255 = void
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pycocotools.mask as mask_util

from ocr_panoptic.coco_panoptic import write_panoptic_json
from ocr_panoptic.data.faults import first_few, gathering, raise_if_any
from ocr_panoptic.data.manifest import Manifest
from ocr_panoptic.data.parallel import map_with_progress
from ocr_panoptic.data.register import check_new_name
from ocr_panoptic.files import write_json

from .annotations import AnnotatedImage, PanopticJson
from .categories import Category, semantic_label_of
from .check import check_split
from .manifest import PANOPTIC_FORMAT, PreparedSplit, RawSplit
from .segments import segment_statistics
from .semantic_png import write_semantic_png

logger = logging.getLogger(__name__)


def prepare_panoptic(
    name: str, splits: dict[str, RawSplit], output: Path, workers: int | None = None
) -> Path:
    """Check the splits, then write ``output`` (see the module's text). Repeating is harmless.

    Images without any segment are left out, with one warning.

    Args:
        name: data sets are registered as ``<name>_<split>``.
        splits: e.g. {"train": ..., "val": ...}.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the manifest's path.

    Raises:
        FileNotFoundError, DataFaults: as :func:`check_split`, with the faults of all splits. Then
            nothing has been written.
        ValueError: a name that is no file name or taken, or files in ``output`` that would be
            written over though they are somebody else's.
    """
    check_new_name(name, splits, output)
    prepared = {
        split: PreparedSplit(
            images=raw.images,
            panoptic_json=output / f"panoptic_{split}.json",
            panoptic_root=raw.panoptic_root,
            sem_seg_root=output / f"sem_seg_{split}",
            instances_json=output / f"instances_{split}.json",
        )
        for split, raw in splits.items()
    }
    PANOPTIC_FORMAT.check_free(output, prepared)
    checked = _check(splits, workers)
    categories = next(iter(checked.values())).categories
    # First of all a manifest that says so: it marks the files as this command's, and as not to be
    # used, should it be interrupted. Last of all the same one, complete.
    manifest = Manifest(name, categories, prepared)
    PANOPTIC_FORMAT.write(output, replace(manifest, complete=False))
    for split, content in checked.items():
        _write_split(split, prepared[split], content, categories, workers)
    return PANOPTIC_FORMAT.write(output, manifest)


def _check(splits: dict[str, RawSplit], workers: int | None) -> dict[str, PanopticJson]:
    checked, faults = {}, []
    for split, raw in splits.items():
        with gathering(faults):
            checked[split] = check_split(raw, workers)
    faults += _category_differences(list(checked.values()))
    for content in checked.values():
        if not any(image.segments for image in content.images):
            faults.append(f"{content.path}: no image holds a segment, all pixels are void.")
    raise_if_any(faults)
    return checked


def _category_differences(contents: list[PanopticJson]) -> Iterator[str]:
    """Splits must agree on ids, names and kinds; colours may differ."""
    described = [
        {c.id: f"{c.name!r} ({'thing' if c.isthing else 'stuff'})" for c in content.categories}
        for content in contents
    ]
    for content, theirs in zip(contents[1:], described[1:], strict=True):
        ours = described[0]
        for number in sorted(ours.keys() | theirs.keys()):
            if ours.get(number) != theirs.get(number):
                yield (
                    f"category {number} is {ours.get(number, 'absent')} in {contents[0].path} and "
                    f"{theirs.get(number, 'absent')} in {content.path}: "
                    "splits must have the same categories."
                )


def _write_split(
    split: str,
    paths: PreparedSplit,
    content: PanopticJson,
    categories: list[Category],
    workers: int | None,
) -> None:
    images = [image for image in content.images if image.segments]
    void = [image.file_name for image in content.images if not image.segments]
    if void:
        logger.warning(
            f"{content.path}: left out {len(void)} of {len(content.images)} images that hold "
            f"nothing but void: {first_few(void)}"
        )
    convert = partial(
        prepare_image,
        panoptic_root=paths.panoptic_root,
        sem_seg_root=paths.sem_seg_root,
        categories=categories,
    )
    converted = map_with_progress(convert, images, f"prepare {split}", workers)
    entries = [
        {"id": i.id, "file_name": i.file_name, "height": i.height, "width": i.width} for i in images
    ]
    panoptic = [
        {"image_id": image.id, "file_name": image.png_name, "segments_info": segments}
        for image, (segments, _) in zip(images, converted, strict=True)
    ]
    instances = [instance for _, found in converted for instance in found]
    for number, instance in enumerate(instances, 1):  # pycocotools takes id 0 for "no match"
        instance["id"] = number
    listed = [category.as_json() for category in categories]
    write_panoptic_json(paths.panoptic_json, zip(entries, panoptic, strict=True), listed)
    things = [category for category in listed if category["isthing"]]
    write_json(
        paths.instances_json, {"images": entries, "annotations": instances, "categories": things}
    )


def prepare_image(
    image: AnnotatedImage, panoptic_root: Path, sem_seg_root: Path, categories: list[Category]
) -> tuple[list[dict], list[dict]]:
    """Write the semantic PNG of one image.

    Returns:
        segments_info with area and box from the PNG; COCO instance annotations without "id".
    """
    ids = write_semantic_png(
        panoptic_root / image.png_name,
        image.segments,
        semantic_label_of(categories),
        sem_seg_root / image.semantic_name,
    )
    statistics = segment_statistics(ids)
    segments = [
        {
            "id": segment["id"],
            "category_id": segment["category_id"],
            "iscrowd": int(segment.get("iscrowd", 0)),
            **statistics[segment["id"]]._asdict(),
        }
        for segment in image.segments
    ]
    things = {category.id for category in categories if category.isthing}
    instances = [
        {
            "image_id": image.id,
            **{key: segment[key] for key in ("category_id", "iscrowd", "area", "bbox")},
            "segmentation": _run_lengths(ids == segment["id"]),
        }
        for segment in segments
        if segment["category_id"] in things
    ]
    return segments, instances


def _run_lengths(mask: np.ndarray) -> dict:
    """COCO's compressed RLE of a mask, bool [H, W], as JSON can hold it."""
    run_lengths = mask_util.encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(run_lengths["size"]), "counts": run_lengths["counts"].decode("ascii")}
