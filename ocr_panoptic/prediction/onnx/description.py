"""The description in an exported model: its classes, and how it was made."""

from typing import Any

from detectron2.data import Metadata
from detectron2.modeling import PanopticFPN
from torch import nn

from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class

from .run_onnx import FORMAT


def describe(model: nn.Module, metadata: Metadata, made: dict[str, Any]) -> dict[str, Any]:
    """
    Args:
        model: a ``PanopticFPN`` or an ``OCRSemanticSegmentor``.
        metadata: of a data set with the model's classes.
        made: of what the model was made: versions, the config's hash, ...

    Returns:
        the description that :class:`.run_onnx.Model` reads, for JSON.
    """
    description = {
        "format": FORMAT,
        "classes": _classes(metadata.stuff_classes, metadata.stuff_colors),
        "made": made,
    }
    if not isinstance(model, PanopticFPN):
        return description
    return description | {
        "things": _classes(metadata.thing_classes, metadata.thing_colors),
        "thing_ids": ids_by_class(metadata, "thing"),
        "stuff_ids": ids_by_class(metadata, "stuff"),
        "categories": categories_of(metadata),
    }


def _classes(names: list[str], colors: list) -> list[dict[str, Any]]:
    return [
        {"name": name, "color": [int(c) for c in color]}
        for name, color in zip(names, colors, strict=True)
    ]
