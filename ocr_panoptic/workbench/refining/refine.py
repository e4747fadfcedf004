"""
Refines label PNGs with true offsets, stored offsets, or offsets predicted by a SegFix model.

An image's *name* is its file's path below the folder of images, without suffix. A label PNG must
have the name of its image, or only the last part of the name if no other image has this last part.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog

from ocr_panoptic.data.catalog import register_data_sets, registered_metadata
from ocr_panoptic.data.faults import first_few
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.labels import has_labels, read_label_image, write_label_png
from ocr_panoptic.formats.offsets import (
    moved,
    offsets_of,
    read_offsets,
    source_pixels,
    split_offset_labels,
)
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.predict.single_image import model_input
from ocr_panoptic.predict.trained_model import build_trained_model
from ocr_panoptic.progress import with_progress
from ocr_panoptic.segfix.truth import read_segment_map, true_offset_labels

Offsets = Mapping[str, Callable[[], np.ndarray]]
"""Image name -> function that returns the image's offsets, int8 [H, W, 2], (down, right)."""


def true_offsets(dataset_name: str, boundary_distance: int) -> Offsets:
    """
    Return a mapping from image names to offsets, computed from a data set's true labels.

    Refining labels with these offsets shows the best result that SegFix could reach.

    Args:
        boundary_distance: largest distance in pixels between a boundary and a pixel with an offset.
    """
    if dataset_name not in DatasetCatalog:
        register_data_sets((), [dataset_name])
    label_map = registered_metadata(dataset_name).get("label_map")
    records = list(filter(has_labels, DatasetCatalog.get(dataset_name)))
    if not records:
        raise UserError(f"--oracle {dataset_name}: the data set has no labels. Name another")

    def of(record: Mapping[str, Any]) -> np.ndarray:
        segments = read_segment_map(record, label_map)
        labels = true_offset_labels(segments, boundary_distance)
        near_boundary, direction = split_offset_labels(labels)
        return offsets_of(near_boundary == 1, direction)

    names = (PurePath(record["file_name"]).with_suffix("").as_posix() for record in records)
    return {name: partial(of, record) for name, record in zip(names, records, strict=True)}


def stored_offsets(folder: Path) -> Offsets:
    """Return a mapping from image names to the offsets in the .mat files in or below a folder."""
    files = sorted(folder.rglob("*.mat"))
    if not files:
        raise MissingFileError(f"--offsets {folder}: the folder contains no .mat files")
    names = (file.relative_to(folder).with_suffix("").as_posix() for file in files)
    return {name: partial(read_offsets, file) for name, file in zip(names, files, strict=True)}


def predicted_offsets(cfg: CfgNode, images: Mapping[str, Path]) -> Offsets:
    """Return a mapping from image names to the offsets that the SegFix model predicts."""
    model = build_trained_model(cfg)

    @torch.inference_mode()
    def of(file: Path) -> np.ndarray:
        image = read_picture(file, cfg.INPUT.FORMAT, cfg.INPUT.CHANNELS)
        (found,) = model([model_input(cfg, image)])
        return offsets_of(found["near_boundary"].cpu().numpy(), found["direction"].cpu().numpy())

    return {name: partial(of, file) for name, file in images.items()}


def refine_labels(folder: Path, output: Path, offsets: Offsets, scale: int) -> int:
    """
    Write refined copies of all label PNGs in or below a folder; return the number of PNGs.

    Each pixel gets the label of the pixel to which its offset, multiplied by ``scale``, points.
    UserError is raised if a PNG's name does not match exactly one image that has offsets.
    """
    if folder.resolve() in (output.resolve(), *output.resolve().parents):
        raise UserError(
            f"--output {output} is in the folder of the predictions, {folder}, so results could "
            "overwrite them. Name another folder"
        )
    files = sorted(folder.rglob("*.png"))
    if not files:
        raise MissingFileError(f"--predictions {folder}: the folder contains no label PNGs")
    by_last = defaultdict(list)
    for name in offsets:
        by_last[PurePath(name).name].append(name)
    own: dict[Path, str] = {}
    missing = []
    for file in files:
        name = file.relative_to(folder).with_suffix("").as_posix()
        known = [name] if name in offsets else by_last[file.stem]
        if len(known) == 1:
            own[file] = known[0]
        else:
            missing.append(name)
    if missing:
        raise UserError(
            f"{len(missing)} of {len(files)} predictions match no image with offsets, or several: "
            f"{first_few(missing)}. Name each prediction after its image. The {len(offsets)} "
            f"images with offsets are {first_few(sorted(offsets)) or '-'}."
        )
    for file, name in with_progress(own.items(), "refine"):
        try:
            refined = moved(read_label_image(file), source_pixels(offsets[name](), scale))
        except ValueError as error:
            raise UserError(f"{file}: {error}") from error
        write_label_png(output / file.relative_to(folder), refined)
    return len(files)
