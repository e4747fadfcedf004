"""Inspection of a trained model on single images."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from torch import Tensor

from ocr_panoptic.formats.pictures import as_colours, read_picture
from ocr_panoptic.layers import ASPOCR, gather_regions
from ocr_panoptic.modeling import InferenceModel, OCRSemanticSegmentor
from ocr_panoptic.modeling.inference import resized_classes, running_argmax
from ocr_panoptic.modeling.inference_model import PRECISIONS
from ocr_panoptic.modeling.refined_head import RefinedHead
from ocr_panoptic.modeling.semantic_logits import semantic_logits
from ocr_panoptic.predict.task import task_of

from .scene import Inspection, PanopticMap, SeenRegions

HEADS = ("OCRSemSegFPNHead", "ContextSemSegHead")
"""Values of MODEL.SEM_SEG_HEAD.NAME for which the head has a context scheme."""
Seen = dict[str, Any]  # "size": (H, W) of the padded images; "features": by name


class Inspector:
    """A callable that returns a model's prediction for an image, with intermediate results."""

    def __init__(self, cfg: CfgNode, model: InferenceModel):
        self._image_format, self._channels = cfg.INPUT.FORMAT, cfg.INPUT.CHANNELS
        self._model, self._network = model, model.network
        self._mapper = task_of(cfg).mapper(cfg, False)

    def semantics(self, record: dict[str, Any]) -> Inspection:
        """Return semantic results for a record, without test-time scales, flips or windows."""
        inputs = self._mapper(record)
        with self._watching() as seen:
            logits = semantic_logits(self._network, [inputs])
        return self._view(record, inputs, logits, seen)

    def __call__(self, record: dict[str, Any]) -> Inspection:
        """Return the model's prediction and intermediate results for a record of a data set."""
        inputs = self._mapper(record)
        if not isinstance(self._network, OCRSemanticSegmentor):
            with self._watching() as seen:
                ids, info = self._model([inputs])[0]["panoptic_seg"]
                logits = self._network.sem_seg_head.layers(seen["features"])
            found = self._view(record, inputs, logits, seen)
            return replace(found, panoptic=PanopticMap(ids.cpu().numpy(), info))
        found = self.semantics(record)
        if self._network.sees_images_once:
            return found
        with torch.inference_mode():
            labels = self._model([inputs])[0]["labels"]
        return replace(found, refined=labels.cpu().numpy())

    @contextmanager
    def _watching(self) -> Iterator[Seen]:
        """Store the backbone's input size and features in the yielded dict when the model runs."""
        seen: Seen = {}
        dtype, device = PRECISIONS[self._model.precision], self._network.device.type
        hook = self._network.backbone.register_forward_hook(
            lambda _, images, features: seen.update(size=images[0].shape[2:], features=features)
        )
        try:
            with torch.inference_mode(), torch.autocast(device, dtype, enabled=dtype is not None):
                yield seen
        finally:
            hook.remove()

    def _view(
        self,
        record: dict[str, Any],
        inputs: dict[str, Any],
        logits: Tensor | tuple[Tensor, Tensor],
        seen: Seen,
    ) -> Inspection:
        coarse, refined = logits if isinstance(logits, tuple) else (None, logits)
        pixels = read_picture(record["file_name"], self._image_format, self._channels)
        head = self._network.sem_seg_head
        align_corners = isinstance(head, RefinedHead) and head.align_corners
        size, padded = inputs["image"].shape[1:], seen["size"]

        def labels(logits: Tensor) -> np.ndarray:
            """Convert logits to labels [H,W] at the size of the image file."""
            sizes = pixels.shape[:2], tuple(size), tuple(padded)
            classes = resized_classes(logits.float(), *sizes, align_corners)
            return running_argmax(classes)[0].cpu().numpy()

        found = Inspection(
            image=as_colours(pixels, self._image_format),
            panoptic=None,
            refined=labels(refined),
            coarse=None if coarse is None else labels(coarse),
        )
        context = getattr(head, "context", None)
        if context is None or not context.uses_regions or context.needs_truth:
            return found
        with self._watching():
            _, x, m = head.prepare(seen["features"])
            if isinstance(context, ASPOCR):  # its pixel representations come from a bottleneck
                x = context.bottleneck(x)
            relation = context.relation(x, m, gather_regions(x, m)).unflatten(2, x.shape[2:])
        cells = m.shape[2:]
        # Numbers of feature rows and columns that cover the input; the last may also cover padding.
        inside = [-(-a * b // c) for a, b, c in zip(size, cells, padded, strict=True)]
        regions, relation = (t[0, :, : inside[0], : inside[1]].float() for t in (m, relation))
        sides = zip(inside, cells, padded, size, pixels.shape[:2], strict=True)
        rows, columns = (cell_edges(*side, align_corners) for side in sides)
        weights = regions.flatten(1).softmax(dim=1).view_as(regions)
        seen_regions = SeenRegions(weights.cpu().numpy(), relation.cpu().numpy(), (rows, columns))
        return replace(found, regions=seen_regions)


def cell_edges(
    inside: int, features: int, padded: int, side: int, pixels: int, align_corners: bool
) -> np.ndarray:
    """
    Return the edges of a feature map's cells (positions) along one axis of the image.

    Each inner edge is half-way between the centres of two neighbouring cells.

    Args:
        inside: number of cells that cover the network's input without padding.
        features: number of cells that cover the padded input.
        padded, side: length of the input along the axis with and without padding, in pixels.
        pixels: length of the image file along the axis, in pixels.
        align_corners: whether resizing aligns the centres of the corner pixels, not their corners.

    Returns:
        float64 [inside + 1], in pixels of the image file from 0 to ``pixels``
    """
    edges: np.ndarray = np.arange(inside + 1.0)
    if align_corners and features > 1:
        edges = (edges - 0.5) * (padded - 1) / (features - 1) + 0.5
    else:
        edges *= padded / features
    edges[[0, -1]] = 0, side
    return edges.clip(0, side) * pixels / side
