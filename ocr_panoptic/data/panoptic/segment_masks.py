"""Masks of the segments of an image, kept as the one map that they are cut from."""

from collections.abc import Sequence
from typing import Any

import torch
from detectron2.layers import ROIAlign
from detectron2.structures import BitMasks, Boxes
from torch import Tensor


class SegmentMasks(BitMasks):
    """
    Detectron2's masks of one image, where no two segments share a pixel: one map goes through
    queues and to the GPU, not one for each object, and the loss copies an object once, not for
    each of its (up to 128) sampled boxes. Results are those of :class:`BitMasks`.

    Attributes:
        places: uint8 or int32 [H, W], the segment of each pixel.
        segments: of places' dtype [M], those that are objects.
        rows: int64 [N], mask i is of segment ``segments[rows[i]]``.
    """

    def __init__(self, places: Tensor, segments: Tensor, rows: Tensor | None = None):
        self.image_size = places.shape
        self.places = places
        self.segments = segments
        self.rows = torch.arange(len(segments), device=places.device) if rows is None else rows

    @property
    def tensor(self) -> Tensor:
        """bool [N, H, W]."""
        return self.places == self.segments[self.rows][:, None, None]

    @property
    def device(self) -> torch.device:
        return self.places.device

    def to(self, device: torch.device | str, **kwargs: Any) -> "SegmentMasks":
        parts = (self.places, self.segments, self.rows)
        return SegmentMasks(*(part.to(device=device, **kwargs) for part in parts))

    @staticmethod
    def cat(masks: Sequence[BitMasks]) -> BitMasks:
        return BitMasks.cat([BitMasks(mask.tensor) for mask in masks])

    def get_bounding_boxes(self) -> Boxes:
        """Return the tight boxes; those of empty masks are 0."""
        return BitMasks(self.tensor).get_bounding_boxes()

    def __getitem__(self, item: int | slice | Tensor) -> "SegmentMasks":
        return SegmentMasks(self.places, self.segments, self.rows[item].reshape(-1))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"SegmentMasks(num_instances={len(self)})"

    def crop_and_resize(self, boxes: Tensor, mask_size: int) -> Tensor:
        """
        Return the part of each mask in its box.

        Args:
            boxes: float [N, 4], (x0, y0, x1, y1) in pixels.
            mask_size: S.

        Returns:
            bool [N, S, S].
        """
        assert len(boxes) == len(self), f"{len(boxes)} boxes, {len(self)} masks"
        segments, rows = self.segments, self.rows
        if len(rows) < len(segments):
            segments, rows = segments[rows], torch.arange(len(rows), device=rows.device)
        masks = (self.places == segments[:, None, None]).float()[:, None]
        rois = torch.cat([rows[:, None].to(boxes), boxes], dim=1)
        align = ROIAlign((mask_size, mask_size), 1.0, 0, aligned=True)
        return align(masks, rois.to(masks.device)).squeeze(1) >= 0.5
