"""Masks of the objects in an image, kept as one map of segments."""

from collections.abc import Sequence
from typing import Any

import torch
from detectron2.layers import ROIAlign
from detectron2.structures import BitMasks, Boxes
from torch import Tensor


class SegmentMasks(BitMasks):
    """
    A faster replacement for Detectron2's ``BitMasks`` if no two segments share a pixel.

    One map of segment indices, not a mask per object, is sent between processes and to the GPU.

    Attributes:
        places: uint8 or int32 [H, W], index of each pixel's segment.
        segments: indices of the M segments that are objects, [M] in the dtype of ``places``.
        rows: for each of the N masks, the position of its segment in ``segments``, int64 [N].
    """

    def __init__(self, places: Tensor, segments: Tensor, rows: Tensor | None = None):
        self.image_size = places.shape
        self.places = places
        self.segments = segments
        self.rows = torch.arange(len(segments), device=places.device) if rows is None else rows

    @property
    def tensor(self) -> Tensor:
        """The masks, bool [N, H, W]."""
        return self.places == self.segments[self.rows][:, None, None]

    def to(self, device: torch.device | str, **kwargs: Any) -> "SegmentMasks":
        parts = (self.places, self.segments, self.rows)
        return SegmentMasks(*(part.to(device=device, **kwargs) for part in parts))

    @staticmethod
    def cat(masks: Sequence[BitMasks]) -> BitMasks:
        return BitMasks.cat([BitMasks(mask.tensor) for mask in masks])

    def get_bounding_boxes(self) -> Boxes:
        return BitMasks(self.tensor).get_bounding_boxes()

    def __getitem__(self, item: int | slice | Tensor) -> "SegmentMasks":
        return SegmentMasks(self.places, self.segments, self.rows[item].reshape(-1))

    def __len__(self) -> int:
        return len(self.rows)

    def crop_and_resize(self, boxes: Tensor, mask_size: int) -> Tensor:
        """Return each mask, cropped to its box and resized, bool [N, mask_size, mask_size]."""
        assert len(boxes) == len(self), f"{len(boxes)} boxes, {len(self)} masks"
        segments, rows = self.segments, self.rows
        if len(rows) < len(segments):
            segments, rows = segments[rows], torch.arange(len(rows), device=rows.device)
        masks = (self.places == segments[:, None, None]).float()[:, None]
        rois = torch.cat([rows[:, None].to(boxes), boxes], dim=1)
        align = ROIAlign((mask_size, mask_size), 1.0, 0, aligned=True)
        return align(masks, rois.to(masks.device)).squeeze(1) >= 0.5
