"""Segments of Cityscapes and ADE20K from the PNGs that one downloads; ids tell their classes.

- Cityscapes: in ``*_instanceIds.png`` an object is its label id * 1000 + a number, anything else
  its label id; where that is of things, nobody told them apart, and it is a crowd. Labels that are
  not evaluated are void. So has it ``cityscapesscripts.preparation.createPanopticImgs``.
- ADE20K: in ``annotations_instance`` the red of a pixel is its category of 100, the green its
  object, whatever the category. Objects lie over the stuff of ``annotations``, 50 of 150 labels;
  all other pixels are void. So has it Mask2Former's ``prepare_ade20k_pan_seg.py``, whose JSON also
  lists stuff that objects hide wholly; here it is none.
"""

import os
from pathlib import Path

import numpy as np

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.label_map import read_labels
from ocr_panoptic.formats.label_png import read_label_png
from ocr_panoptic.formats.pictures import load_labels

from .tables import ADE20K_STUFF, CITYSCAPES_IGNORED, CITYSCAPES_OBJECTS, cityscapes_categories

CITYSCAPES_THING_IDS = {category.id for category in cityscapes_categories() if category.isthing}
ADE20K_OBJECTS = 256  # label * 256 + number
ADE20K_THINGS = [label for label in range(1, 151) if label not in ADE20K_STUFF]
ADE20K_IDS = {label: label if label in ADE20K_STUFF else 0 for label in range(151)}


def _cityscapes_ids() -> np.ndarray:
    """Segment id of each value of 16 bits: 0 for void, -1 where there is no such label."""
    table = np.full(1 << 16, -1, np.int32)
    for label in (*CITYSCAPES_IGNORED, *(c.id for c in cityscapes_categories())):
        objects = range(label * CITYSCAPES_OBJECTS, (label + 1) * CITYSCAPES_OBJECTS)
        values = [label, *(objects if label else ())]
        table[values] = 0 if label in CITYSCAPES_IGNORED else values
    return table


CITYSCAPES_IDS = _cityscapes_ids()


def read_cityscapes_ids(path: str | os.PathLike) -> np.ndarray:
    """Segment ids of ``*_instanceIds.png``: its values, 0 for those that are not evaluated.

    Returns:
        int32 [H, W]; 0 is void.

    Raises:
        FileNotFoundError, ValueError: the file is missing or broken, or has other ids.
    """
    values = read_label_png(path)
    ids = CITYSCAPES_IDS[values]
    if ids.min() < 0:
        raise UserError(
            f"{path}: the ids {first_few(list(map(str, np.unique(values[ids < 0]))))} are no label "
            "ids of Cityscapes. Are they train ids, or those of other classes?"
        )
    return ids


def cityscapes_kind(number: int) -> tuple[int, int]:
    """Return the category and iscrowd of a segment id."""
    if number >= CITYSCAPES_OBJECTS:
        return number // CITYSCAPES_OBJECTS, 0
    return number, int(number in CITYSCAPES_THING_IDS)


def read_ade20k_ids(path: str | os.PathLike) -> np.ndarray:
    """Segment ids of a PNG of ``annotations_instance`` and that of ``annotations``: of stuff the
    label 1..150, of an object label * 256 + number.

    Returns:
        int32 [H, W]; 0 is void.

    Raises:
        FileNotFoundError, ValueError: a file is missing or broken, or has other labels.
    """
    ids = read_labels(ade20k_labels(path), ADE20K_IDS).astype(np.int32)
    colors = np.asarray(load_labels(path, "instance PNG"))
    if colors.shape != (*ids.shape, 3):
        raise UserError(
            f"{path}: expected RGB as large as {ade20k_labels(path)}, {[*ids.shape, 3]}, found "
            f"{list(colors.shape)}."
        )
    is_object = colors[..., 1] > 0
    category, number, _ = colors[is_object].T
    if foreign := sorted(set(np.unique(category).tolist()) - set(range(1, len(ADE20K_THINGS) + 1))):
        raise UserError(f"{path}: objects of the categories {foreign}, expected 1..100 (red).")
    label = np.array([0, *ADE20K_THINGS], np.int32)[category]
    ids[is_object] = label * ADE20K_OBJECTS + number
    return ids


def ade20k_labels(path: str | os.PathLike) -> Path:
    """Return the PNG of labels beside one of ``annotations_instance``."""
    folder, split, name = Path(path).parents[2], Path(path).parent.name, Path(path).name
    return folder / "annotations" / split / name


def ade20k_kind(number: int) -> tuple[int, int]:
    """Return the category, 0..149, and iscrowd of a segment id."""
    label = number if number < ADE20K_OBJECTS else number // ADE20K_OBJECTS
    return label - 1, 0
