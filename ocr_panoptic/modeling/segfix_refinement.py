"""A model whose predictions a SegFix refines. Shape letters: K classes, H, W size of the image."""

from collections.abc import Sequence
from typing import Any

import torch
from detectron2.structures import Instances
from torch import Tensor, nn

from ocr_panoptic.offsets import moved, offsets_of, source_pixels

from .panoptic_inference import PanopticOutput
from .segfix import SegFix


class RefinedModel(nn.Module):
    """
    Args:
        model: a ``PanopticFPN`` or ``OCRSemanticSegmentor``.
        segfix: that refines what it predicts, in evaluation mode.
        scale: of the offsets.
    """

    def __init__(self, model: nn.Module, segfix: SegFix, scale: int):
        super().__init__()
        self.model, self.segfix, self.scale = model, segfix, scale
        # In the model's mode: an evaluation goes back to it, and the model may be one in training.
        self.training = model.training

    def forward(self, batched_inputs: list[dict]) -> list[dict[str, Any]]:
        """
        Args:
            batched_inputs: those of the model, each with "segfix", that of SegFix for the same
                image; its "height" and "width" are those of the model's result.

        Returns:
            the model's outputs, refined, see :func:`refine_output`
        """
        outputs = self.model(batched_inputs)
        return [
            refine_output(output, self.sources(inputs))
            for output, inputs in zip(outputs, batched_inputs, strict=True)
        ]

    def sources(self, inputs: dict) -> Tensor:
        """:func:`.source_pixels` of one of :meth:`forward`, int64 [H, W] on SegFix's device."""
        (found,) = self.segfix([inputs["segfix"]])
        near_boundary, direction = (
            found[key].cpu().numpy() for key in ("near_boundary", "direction")
        )
        sources = source_pixels(offsets_of(near_boundary, direction), self.scale)
        return torch.from_numpy(sources).to(found["direction"].device)


def refine_output(output: dict[str, Any], sources: Tensor) -> dict[str, Any]:
    """
    Args:
        output: of a model for an image, with some of "labels" and "confidence" [H, W], "sem_seg"
            [K, H, W], "panoptic_seg" and "instances".
        sources: int64 [H, W].

    Returns:
        the same refined: labels with their scores, and segments moved; the segments that lose all
        their pixels left out, and the areas of the others counted anew. Masks of instances are
        moved, too; boxes and scores of instances stay.
    """

    def refined(values: Tensor) -> Tensor:
        return moved(values, sources.to(values.device))

    found: dict[str, Any] = {
        key: refined(output[key]) for key in ("labels", "confidence", "sem_seg") if key in output
    }
    if "panoptic_seg" in output:
        ids, segments = output["panoptic_seg"]
        ids = refined(ids)
        found["panoptic_seg"] = ids, segments_shown(segments, ids)
    if "instances" in output:
        fields = dict(output["instances"].get_fields())
        if "pred_masks" in fields:
            fields["pred_masks"] = refined(fields["pred_masks"])
        found["instances"] = Instances(output["instances"].image_size, **fields)
    if isinstance(output, PanopticOutput):
        return PanopticOutput(lambda: refined(output["sem_seg"]), **found)
    return found


def segments_shown(segments: Sequence[dict[str, Any]], ids: Tensor) -> list[dict[str, Any]]:
    """The segments that a panoptic map [H, W] shows; those with an "area" have the one in it."""
    numbers, areas = (found.tolist() for found in ids.unique(return_counts=True))
    area_of = dict(zip(numbers, areas, strict=True))
    return [
        {**segment, "area": area_of[segment["id"]]} if "area" in segment else segment
        for segment in segments
        if segment["id"] in area_of
    ]
