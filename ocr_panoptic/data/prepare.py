"""Preparation of a data set in COCO panoptic format for Panoptic-FPN.

Panoptic-FPN trains on instance annotations and on semantic labels. Both are derived from the
panoptic PNGs and written beside a manifest that :mod:`.register` reads:

    dataset.json                  the manifest: name, categories, where everything lies
    panoptic_<split>.json         the panoptic annotations, areas and boxes from the PNGs
    instances_<split>.json        COCO instance annotations, RLE masks
    sem_seg_<split>/<name>.png    0 = things, 1..S = stuff by ascending category id, 255 = void
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pycocotools.mask as mask_util

from ..files import write_json
from .categories import Category, semantic_label_of
from .check import check_split
from .faults import DataFaults, raise_if_any
from .manifest import MANIFEST_NAME, Manifest, PreparedSplit, read_manifest, write_manifest
from .panoptic_json import AnnotatedImage, PanopticJson
from .parallel import map_with_progress
from .segments import segment_statistics
from .semantic import write_semantic_png

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RawSplit:
    """One split as the user has it."""

    images: Path  # folder
    panoptic_json: Path
    panoptic_root: Path  # folder of panoptic PNGs


def datasets_root() -> Path:
    """Detectron2's folder of data sets: ``$DETECTRON2_DATASETS``, by default ``datasets``."""
    return Path(os.getenv("DETECTRON2_DATASETS", "datasets")).expanduser()


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
        ValueError: a name that is no file name, or files in ``output`` that would be written over
            though they are somebody else's.
    """
    check_name(name)
    prepared = {split: _prepared(split, raw, output) for split, raw in splits.items()}
    _check_free(prepared, output)
    checked = _check(splits, workers)
    categories = next(iter(checked.values())).categories
    # First of all the manifest: it marks the files as this command's, should it be interrupted.
    manifest = write_manifest(output, Manifest(name, categories, prepared))
    for split, content in checked.items():
        _write_split(split, prepared[split], content, categories, workers)
    return manifest


def check_name(name: str) -> None:
    """Raise ValueError for a data set's name that is no file name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(
            f"Data set name {name!r}: use letters, digits, '_', '-' and '.' (it names a folder)."
        )


def _prepared(split: str, raw: RawSplit, output: Path) -> PreparedSplit:
    return PreparedSplit(
        images=raw.images,
        panoptic_json=output / f"panoptic_{split}.json",
        panoptic_root=raw.panoptic_root,
        sem_seg_root=output / f"sem_seg_{split}",
        instances_json=output / f"instances_{split}.json",
    )


def _check_free(prepared: dict[str, PreparedSplit], output: Path) -> None:
    """Refuse to write over files that no earlier preparation wrote."""
    path = output / MANIFEST_NAME
    former = read_manifest(path) if path.exists() else None
    targets = {t for p in prepared.values() for t in _targets(p)}
    own = {t for p in former.splits.values() for t in _targets(p)} if former else set()
    taken = [target for target in sorted(targets - own) if target.exists()]
    if path.exists() and former is None:
        taken.append(path)
    if taken:
        raise ValueError(
            f"{', '.join(map(str, taken))}: would be written over, but no earlier preparation "
            "wrote it. Give another --output, or move it away."
        )


def _targets(paths: PreparedSplit) -> tuple[Path, ...]:
    return paths.panoptic_json, paths.sem_seg_root, paths.instances_json


def _check(splits: dict[str, RawSplit], workers: int | None) -> dict[str, PanopticJson]:
    checked, faults = {}, []
    for split, raw in splits.items():
        try:
            checked[split] = check_split(raw.images, raw.panoptic_json, raw.panoptic_root, workers)
        except DataFaults as error:
            faults += error.faults
    faults += _category_differences(list(checked.values()))
    for content in checked.values():
        if not any(image.segments for image in content.images):
            faults.append(f"{content.path}: no image holds a segment, all pixels are void.")
    raise_if_any(faults)
    return checked


def _category_differences(contents: list[PanopticJson]) -> list[str]:
    """Splits must agree on ids, names and kinds; colours may differ."""
    faults = []
    for other in contents[1:]:
        first = contents[0]
        ours, theirs = (
            {category.id: (category.name, category.isthing) for category in content.categories}
            for content in (first, other)
        )
        for number in sorted(ours.keys() | theirs.keys()):
            if ours.get(number) != theirs.get(number):
                faults.append(
                    f"category {number} is {_describe(ours.get(number))} in {first.path} and "
                    f"{_describe(theirs.get(number))} in {other.path}: "
                    "splits must have the same categories."
                )
    return faults


def _describe(category: tuple[str, bool] | None) -> str:
    if category is None:
        return "absent"
    name, isthing = category
    return f"{name!r} ({'thing' if isthing else 'stuff'})"


def _write_split(
    split: str,
    paths: PreparedSplit,
    content: PanopticJson,
    categories: list[Category],
    workers: int | None,
) -> None:
    images = [image for image in content.images if image.segments]
    _warn_of_void(content, images)
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
    write_json(
        paths.panoptic_json, {"images": entries, "annotations": panoptic, "categories": listed}
    )
    things = [category for category in listed if category["isthing"]]
    write_json(
        paths.instances_json, {"images": entries, "annotations": instances, "categories": things}
    )


def _warn_of_void(content: PanopticJson, kept: list[AnnotatedImage]) -> None:
    void = [image.file_name for image in content.images if not image.segments]
    if void:
        some = ", ".join(void[:5]) + (", ..." if len(void) > 5 else "")
        logger.warning(
            f"{content.path}: left out {len(void)} of {len(content.images)} images that hold "
            f"nothing but void: {some}"
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
            "category_id": segment["category_id"],
            "iscrowd": segment["iscrowd"],
            "area": segment["area"],
            "bbox": segment["bbox"],
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
