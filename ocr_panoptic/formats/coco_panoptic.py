"""
Files in COCO panoptic format [1]: a PNG for each image, and a JSON for all images.

A PNG stores the segment id of each pixel in the three bytes of its colour,
``id = R + 256 * G + 256**2 * B``; id 0 (black) is void. The JSON has the lists ``images``,
``annotations`` (for each image, the name of the PNG and the ``segments_info``) and ``categories``.
This module does not check the files; :mod:`ocr_panoptic.data.panoptic.check` does.

[1] https://cocodataset.org/#format-data, "Panoptic Segmentation"

Shape letters: H, W size of the image.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ocr_panoptic.errors import UserError

from .files import printable, replacing
from .pictures import load_labels

if TYPE_CHECKING:
    from detectron2.data import Metadata

MAX_ID = 256**3 - 1
THINGS_LABEL, VOID_LABEL = 0, 255  # semantic labels of Panoptic-FPN


def ids_by_class(metadata: "Metadata", kind: str) -> list[int]:
    """Return the dataset ids of all "thing" or "stuff" classes, in the order of contiguous ids."""
    contiguous: dict[int, int] = metadata.get(f"{kind}_dataset_id_to_contiguous_id") or {}
    return sorted(contiguous, key=contiguous.__getitem__)


def categories_of(metadata: "Metadata") -> list[dict]:
    """
    Return a data set's "categories" for a panoptic JSON, in ascending order of ids.

    Detectron2's additional stuff class "things" is left out.
    """
    listed = [
        {
            "id": number,
            "name": name,
            "isthing": int(kind == "thing"),
            "color": list(map(int, color)),
        }
        for kind, first in (("thing", 0), ("stuff", 1))
        for number, name, color in zip(
            ids_by_class(metadata, kind)[first:],
            metadata.get(f"{kind}_classes")[first:],
            metadata.get(f"{kind}_colors")[first:],
            strict=True,
        )
    ]
    return sorted(listed, key=lambda category: category["id"])


def rgb2id(rgb: np.ndarray) -> np.ndarray:
    """Convert the colours of a panoptic PNG, uint8 [H, W, 3], to segment ids, int32 [H, W]."""
    ids = rgb[..., 2].astype(np.int32)
    ids <<= 8
    ids |= rgb[..., 1]
    ids <<= 8
    ids |= rgb[..., 0]
    return ids


def id2rgb(ids: np.ndarray) -> np.ndarray:
    """Convert segment ids [H, W], 0..2**24 - 1, to colours of a panoptic PNG, uint8 [H, W, 3]."""
    if ids.size and (ids.min() < 0 or ids.max() > MAX_ID):
        raise UserError(
            f"Segment ids must lie in 0..{MAX_ID} to fit a panoptic PNG, "
            f"found {ids.min()}..{ids.max()}."
        )
    return np.stack([ids & 255, (ids >> 8) & 255, (ids >> 16) & 255], axis=-1).astype(np.uint8)


def read_panoptic_png(path: str | os.PathLike) -> np.ndarray:
    """Read the segment ids of a panoptic PNG, int32 [H, W]; 0 is void."""
    image = load_labels(path, "panoptic PNG")
    if image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("RGB")
    if image.mode != "RGB":
        raise UserError(
            f"{printable(path)}: expected an RGB image that stores segment ids "
            f"(R + 256 G + 256^2 B), found mode {image.mode!r}. "
            "Is it a label map or a palette image? Convert it to a COCO panoptic PNG."
        )
    return rgb2id(np.asarray(image))


def read_segment_ids(record: Mapping) -> np.ndarray:
    """
    Read the segment ids of a Detectron2 record, int32 [H, W]; 0 is void.

    The file is ``record["pan_seg_file_name"]``. It must be a panoptic PNG, unless
    ``record["read_segments"]`` is a function that reads it.
    """
    return record.get("read_segments", read_panoptic_png)(record["pan_seg_file_name"])


def label_of_segments(segments: Sequence[Mapping]) -> dict[int, int]:
    """
    Return Panoptic-FPN's semantic label for each segment id in a record's ``segments_info``.

    As in Detectron2's ``prepare_panoptic_fpn.py``, the label is 0 for things, 1..S for the S stuff
    classes, and 255 for void (id 0).
    """
    labels = {s["id"]: THINGS_LABEL if s["isthing"] else s["category_id"] for s in segments}
    return {0: VOID_LABEL, **labels}


def write_panoptic_png(path: str | os.PathLike, ids: np.ndarray) -> None:
    """Write segment ids [H, W] to a panoptic PNG atomically; create missing folders."""
    rgb = id2rgb(ids)
    with replacing(Path(path)) as temporary:
        Image.fromarray(rgb).save(temporary, format="PNG")
