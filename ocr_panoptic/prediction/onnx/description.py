"""The description in an exported model: classes, sizes of images, rules of the merge."""

from typing import Any

from detectron2.data import Metadata
from detectron2.data import transforms as T
from detectron2.modeling import PanopticFPN
from torch import nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class

from .run_onnx import FILTERS, FORMAT


def describe(
    model: nn.Module, metadata: Metadata, augmentation: T.Augmentation, made: dict[str, Any]
) -> dict[str, Any]:
    """
    Args:
        model: a ``PanopticFPN`` or an ``OCRSemanticSegmentor``.
        metadata: of a data set with the model's classes.
        augmentation: how an image is resized in tests.
        made: of what the model was made: versions, the config's hash, ...

    Returns:
        the description that :class:`.run_onnx.Model` reads, for JSON.

    Raises:
        ValueError: an augmentation that the runner has not.
    """
    description = {
        "format": FORMAT,
        "classes": _classes(metadata.stuff_classes, metadata.stuff_colors),
        "resize": _resize(augmentation),
        "made": made,
    }
    if not isinstance(model, PanopticFPN):
        return description
    return description | {
        "things": _classes(metadata.thing_classes, metadata.thing_colors),
        "thing_ids": ids_by_class(metadata, "thing"),
        "stuff_ids": ids_by_class(metadata, "stuff"),
        "categories": categories_of(metadata),
        "merge": {
            "overlap": model.combine_overlap_thresh,
            "stuff_area": model.combine_stuff_area_thresh,
            "score": model.combine_instances_score_thresh,
        },
    }


def _classes(names: list[str], colors: list) -> list[dict[str, Any]]:
    return [
        {"name": name, "color": [int(c) for c in color]}
        for name, color in zip(names, colors, strict=True)
    ]


def _resize(augmentation: T.Augmentation) -> dict[str, Any] | None:
    if isinstance(augmentation, T.AugmentationList) and len(augmentation.augs) == 1:
        augmentation = augmentation.augs[0]
    names = {filter_: name for name, filter_ in FILTERS.items()}
    if type(augmentation) in (T.Resize, T.ResizeShortestEdge) and augmentation.interp in names:
        interpolation = names[augmentation.interp]
        if isinstance(augmentation, T.Resize):
            return {"interpolation": interpolation, "size": list(augmentation.shape)}
        shortest, *others = set(augmentation.short_edge_length)
        if not others:
            longest = augmentation.max_size
            rule = {"interpolation": interpolation, "shortest": shortest, "longest": longest}
            return rule if shortest else None
    raise UserError(f"{augmentation} is no resizing of test images that can be exported")
