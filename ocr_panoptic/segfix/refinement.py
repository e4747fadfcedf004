"""A model whose predictions SegFix refines. Shape letters: K classes; H, W size of the image."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from detectron2.structures import Instances
from torch import Tensor, nn

from ocr_panoptic.formats.offsets import moved, offsets_of, source_pixels
from ocr_panoptic.modeling.inference_output import InferenceOutput


class RefinedModel(nn.Module):
    """
    A model whose predictions SegFix refines.

    Args:
        model: :class:`.InferenceModel` that makes the predictions.
        segfix: :class:`.InferenceModel` of a SegFix network.
        scale: factor by which SegFix's offsets are multiplied.
    """

    def __init__(self, model: nn.Module, segfix: nn.Module, scale: int):
        super().__init__()
        self.model, self.segfix, self.scale = model, segfix, scale
        self.training = model.training  # an evaluation restores this mode

    def forward(self, batched_inputs: list[dict]) -> list[InferenceOutput]:
        """
        Return the model's outputs, refined by :func:`refine_output`.

        Each input must also have "segfix": SegFix's input for the same image, with "height" and
        "width" of the model's result.
        """
        outputs = self.model(batched_inputs)
        return [
            refine_output(output, self.sources(inputs))
            for output, inputs in zip(outputs, batched_inputs, strict=True)
        ]

    def sources(self, inputs: dict) -> Tensor:
        """
        Run SegFix, and return each pixel's source: the index of the pixel to copy from.

        The indices into the flattened image are int64 [H, W], on SegFix's device.
        """
        (found,) = self.segfix([inputs["segfix"]])
        offsets = offsets_of(*(found[key].cpu().numpy() for key in ("near_boundary", "direction")))
        sources = source_pixels(offsets, self.scale)
        return torch.from_numpy(sources).to(found["direction"].device)


def refine_output(output: Mapping[str, Any], sources: Tensor) -> InferenceOutput:
    """
    Return a model's output in which each pixel copies another pixel's labels, scores and masks.

    Segments that lose all their pixels are removed, and the areas of all other segments are
    recomputed. Boxes and scores of instances do not change.

    ``sources``, int64 [H, W], holds the index (into the flattened image) of the pixel that each
    pixel copies.
    """

    def refined(values: Tensor) -> Tensor:
        return moved(values, sources.to(values.device))

    def panoptic(found: tuple[Tensor, Sequence[dict]]) -> tuple[Tensor, list[dict]]:
        ids, segments = refined(found[0]), found[1]
        area_of = dict(zip(*(part.tolist() for part in ids.unique(return_counts=True))))
        return ids, [
            {**segment, "area": area_of[segment["id"]]} if "area" in segment else segment
            for segment in segments
            if segment["id"] in area_of
        ]

    def instances(found: Instances) -> Instances:
        fields = dict(found.get_fields())
        if "pred_masks" in fields:
            fields["pred_masks"] = refined(fields["pred_masks"])
        return Instances(found.image_size, **fields)

    kinds = {"panoptic_seg": panoptic, "instances": instances}

    def part(key: str) -> Callable[[InferenceOutput], Any]:
        return lambda _: kinds.get(key, refined)(output[key])

    return InferenceOutput({key: part(key) for key in output})
