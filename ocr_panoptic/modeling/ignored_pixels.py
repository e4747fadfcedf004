"""
Ignore the pixels without a label in the training of the RPN and of the box head.

Detectron2 takes an anchor or a proposal on void or on a crowd for background. Here it is neither
positive nor negative if such pixels fill more than half of its part in the image. The true boxes
of labelled objects are always positive. Images without such pixels have Detectron2's results.

Shape letters: H, W size of the image; R boxes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from detectron2.modeling import PROPOSAL_GENERATOR_REGISTRY
from detectron2.modeling.proposal_generator import RPN
from detectron2.structures import Boxes, Instances
from torch import Tensor


class PartlyLabelled(Instances):
    """
    The true instances of an image in which some pixels have no label.

    Args:
        instances: the labelled objects.
        ignored: whether each pixel is void or belongs to a crowd, bool [H, W].
    """

    def __init__(self, instances: Instances, ignored: Tensor):
        super().__init__(instances.image_size, **instances.get_fields())
        self._ignored = ignored

    @property
    def ignored(self) -> Tensor:
        """Return whether each pixel has no label, bool [H, W]."""
        return self._ignored  # Detectron2 makes fields of attributes without the underscore

    def to(self, *args: Any, **kwargs: Any) -> "PartlyLabelled":
        return PartlyLabelled(super().to(*args, **kwargs), self.ignored.to(*args, **kwargs))

    def are_ignored(self, boxes: Boxes) -> Tensor:
        """Return whether ignored pixels fill more than half of each box, bool [R]."""
        return mostly_inside(boxes.tensor, self.ignored)


def mostly_inside(boxes: Tensor, mask: Tensor) -> Tensor:
    """
    Return whether a mask fills more than half of each box, bool [R].

    Only the part of a box in the image counts; a box outside the image is not inside the mask. The
    area is exact for fractional coordinates, up to the rounding of float64: the integral of a mask
    over the rectangle from the image's corner to a point is bilinear within each pixel.

    Args:
        boxes: x0, y0, x1, y1 in pixels, [R, 4].
        mask: bool [H, W].
    """
    integral = F.pad(mask.long().cumsum(0).cumsum(1), (1, 0, 1, 0)).double()
    height, width = mask.shape
    x = boxes[:, None, 0::2].double().clamp(0, width)  # [R, 1, 2]: left, right
    y = boxes[:, 1::2, None].double().clamp(0, height)  # [R, 2, 1]: top, bottom
    column, row = x.long().clamp(max=width - 1), y.long().clamp(max=height - 1)
    upper, lower = (
        torch.lerp(integral[r, column], integral[r, column + 1], x - column) for r in (row, row + 1)
    )
    corner = torch.lerp(upper, lower, (y - row).expand_as(upper))  # [R, 2, 2]
    inside = corner[:, 1, 1] - corner[:, 0, 1] - corner[:, 1, 0] + corner[:, 0, 0]
    area = (x[:, 0, 1] - x[:, 0, 0]) * (y[:, 1, 0] - y[:, 0, 0])
    return 2 * inside > area


def without_ignored(proposals: list[Instances], targets: list[Instances]) -> list[Instances]:
    """Return each image's proposals, except those that its truth ignores."""
    return [
        found[~truth.are_ignored(found.proposal_boxes)]
        if isinstance(truth, PartlyLabelled)
        else found
        for found, truth in zip(proposals, targets, strict=True)
    ]


@PROPOSAL_GENERATOR_REGISTRY.register()
class IgnoringRPN(RPN):
    """Detectron2's ``RPN``, except that it does not learn from ignored anchors."""

    @torch.no_grad()
    def label_and_sample_anchors(
        self, anchors: list[Boxes], gt_instances: list[Instances]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return, for each image, labels int8 [R] and the matched true boxes [R, 4]."""
        if not any(isinstance(truth, PartlyLabelled) for truth in gt_instances):
            return super().label_and_sample_anchors(anchors, gt_instances)
        every = Boxes.cat(anchors)
        labels, matched = [], []
        for truth in gt_instances:
            kept = torch.ones(len(every), dtype=torch.bool, device=every.device)
            if isinstance(truth, PartlyLabelled):
                kept = ~truth.are_ignored(every)
            (label,), (boxes,) = super().label_and_sample_anchors([every[kept]], [truth])
            labels.append(label.new_full(kept.shape, -1).masked_scatter_(kept, label))
            filled = torch.zeros_like(every.tensor)
            matched.append(filled.masked_scatter_(kept[:, None], boxes))
        return labels, matched
