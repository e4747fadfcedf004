"""A closer look at what a trained model does on single images, for the report."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from torch import Tensor, nn

from ocr_panoptic.engine.task import task_of
from ocr_panoptic.formats.pictures import as_colours, read_picture
from ocr_panoptic.layers import RegionContext
from ocr_panoptic.modeling import InferenceModel, OCRSemanticSegmentor
from ocr_panoptic.modeling.inference import resized_classes, running_argmax
from ocr_panoptic.modeling.refined_head import RefinedHead
from ocr_panoptic.visualization.scene import Inspection, PanopticMap


class Inspector:
    """
    A model under inspection: what it predicts for the images of a data set, and what leads to it:
    the coarse prediction and, where the context scheme has them, the soft object regions and the
    relation of the pixels to them.

    Args:
        model: of an ``OCRSemanticSegmentor``, or of a ``PanopticFPN`` whose semantic head is
            Detectron2's or ``OCRSemSegFPNHead``.
    """

    def __init__(self, cfg: CfgNode, model: InferenceModel):
        self._image_format, self._channels = cfg.INPUT.FORMAT, cfg.INPUT.CHANNELS
        self._model, self._network = model, model.network
        self._task = task_of(cfg)
        self._mapper = self._task.mapper(cfg, False)

    def semantics(self, record: dict[str, Any]) -> Inspection:
        """
        The semantic network's part, with the image seen once, at its own scale: without the
        segments of a panoptic model, and whatever TEST says of scales, flips and windows.

        Args:
            record: of a Detectron2 data set.
        """
        inputs = self._mapper(record)
        with torch.inference_mode(), _watched(self._network) as seen:
            self._task.semantic_logits(self._network, [inputs])
        return self._view(record, inputs, seen)

    def __call__(self, record: dict[str, Any]) -> Inspection:
        """
        The model's own prediction, with what leads to it.

        Args:
            record: of a Detectron2 data set.
        """
        if isinstance(self._network, OCRSemanticSegmentor):
            found = self.semantics(record)
            if self._network.sees_images_once:
                return found
            inputs = self._mapper(record)
            with torch.inference_mode():
                labels = self._model([inputs])[0]["labels"]
                attention = self._network.scale_attention(inputs)
            return replace(
                found,
                refined=labels.cpu().numpy(),
                attention={scale: a.cpu().numpy() for scale, a in attention.items()},
            )
        inputs = self._mapper(record)
        with torch.inference_mode(), _watched(self._network) as seen:
            ids, info = self._model([inputs])[0]["panoptic_seg"]
        return replace(
            self._view(record, inputs, seen), panoptic=PanopticMap(ids.cpu().numpy(), info)
        )

    def _view(self, record: dict[str, Any], inputs: dict[str, Any], seen: "_Seen") -> Inspection:
        pixels = read_picture(record["file_name"], self._image_format, self._channels)
        head = self._network.sem_seg_head
        align_corners = isinstance(head, RefinedHead) and head.align_corners
        size, features = tuple(inputs["image"].shape[1:]), seen.refined.shape[2:]
        # Rows and columns of the features that are not padding, the last ones perhaps in part.
        inside = tuple(
            -(-side * cells // whole)
            for side, cells, whole in zip(size, features, seen.padded, strict=True)
        )

        def labels(logits: Tensor) -> np.ndarray:
            """[H,W] as the model itself makes them."""
            sizes = pixels.shape[:2], size, seen.padded
            classes = resized_classes(logits, *sizes, align_corners)
            return running_argmax(classes)[0].cpu().numpy()

        inspection = Inspection(
            image=as_colours(pixels, self._image_format),
            panoptic=None,
            refined=labels(seen.refined),
            coarse=None if seen.coarse is None else labels(seen.coarse),
        )
        if seen.regions is None:
            return inspection
        relation = seen.relation
        if relation is not None:
            relation = relation[0, :, : inside[0], : inside[1]].float().cpu().numpy()
        sides = zip(inside, features, seen.padded, size, pixels.shape[:2], strict=True)
        return replace(
            inspection,
            regions=_regions(seen.regions[0], inside),
            relation=relation,
            cells=tuple(_cell_edges(*side, align_corners) for side in sides),
        )


@dataclass
class _Seen:
    """
    The tensors that have passed through a semantic network while it was watched.

    Attributes:
        padded: (H, W) of the images that the backbone saw.
        coarse, refined: logits [N,K,h,w]; coarse is None for Detectron2's head.
        regions: the logits m [N,K,h,w] that the scheme saw, if it depends on predicted ones.
        relation: [N,K,h,w], if it was computed.
    """

    padded: tuple[int, int] | None = None
    coarse: Tensor | None = None
    refined: Tensor | None = None
    regions: Tensor | None = None
    relation: Tensor | None = None


@contextmanager
def _watched(model: nn.Module) -> Iterator[_Seen]:
    """Fills a ``_Seen`` while the model runs once; afterwards the model is as it was."""
    seen, head = _Seen(), model.sem_seg_head

    def keep_size(module: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.padded = tuple(inputs[0].shape[2:])

    def keep_logits(*args: Any) -> Any:
        logits = type(head).layers(head, *args)
        seen.coarse, seen.refined = logits if isinstance(logits, tuple) else (None, logits)
        return logits

    def keep_regions(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        prepared = type(head).prepare(head, *args)
        if context.uses_regions and not context.needs_truth:
            seen.regions = prepared[2]
        return prepared

    def keep_relation(x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        w = type(context).relation(context, x, m, f)
        if seen.regions is not None:  # else they are not those of the classes
            rows = w.unflatten(2, x.shape[2:])  # all, or a band of them
            seen.relation = rows if seen.relation is None else torch.cat([seen.relation, rows], 2)
        return w

    hook = model.backbone.register_forward_pre_hook(keep_size)
    context = head.context if isinstance(head, RefinedHead) else None
    head.layers = keep_logits
    if context is not None:
        head.prepare = keep_regions
    if isinstance(context, RegionContext):
        context.relation = keep_relation
    try:
        yield seen
    finally:
        hook.remove()
        del head.layers
        if context is not None:
            del head.prepare
        if isinstance(context, RegionContext):
            del context.relation


def _cell_edges(
    inside: int, features: int, padded: int, side: int, pixels: int, align_corners: bool
) -> np.ndarray:
    """
    Return where the features' cells begin and end along one axis: half-way between the positions
    that resizing gives them.

    Args:
        inside: cells that are not padding alone.
        features: cells of the padded input, whose side is ``padded``.
        side: of the input without padding.
        pixels: the same of the image file.

    Returns:
        float64 [inside + 1], in pixels of the image file from 0 to ``pixels``
    """
    edges = np.arange(inside + 1.0)
    if align_corners and features > 1:
        edges = (edges - 0.5) * (padded - 1) / (features - 1) + 0.5
    else:
        edges *= padded / features
    edges[[0, -1]] = 0, side
    return edges.clip(0, side) * pixels / side


def _regions(logits: Tensor, inside: tuple[int, int]) -> np.ndarray:
    """
    The soft object regions: the paper's spatial softmax, over the pixels that are not padding.

    Args:
        logits: of the regions [K,h,w] of the padded input.
        inside: rows and columns that are not padding.

    Returns:
        float32 [K,*inside], of sum 1 for each class.
    """
    weights = logits[:, : inside[0], : inside[1]].float()
    return weights.flatten(1).softmax(dim=1).view_as(weights).cpu().numpy()
