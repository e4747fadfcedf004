"""A model's output for an image as arrays. Shape letters: K classes, H, W size of the image."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.structures import Instances
from torch import nn

from ocr_panoptic.engine.single_image import model_input
from ocr_panoptic.modeling.confidence import confident_argmax


@dataclass(frozen=True)
class Prediction:
    """
    Attributes:
        labels: of the semantic classes, int64 [H,W].
        confidence: probability of what the pixel is assigned to, float32 [H,W] in 0..1: of its
            label, or in a panoptic map the score of its instance, and 0 where it is void.
        ids: of the segments, int32 [H,W], 0 is void; None for a semantic model.
        segments: "id", "isthing", the model's "category_id" and, of things, "score".
        instances: with boxes, classes, scores and masks in the image's size.
    """

    labels: np.ndarray
    confidence: np.ndarray
    ids: np.ndarray | None = None
    segments: tuple[dict[str, Any], ...] = ()
    instances: Instances | None = None


class Predictor:
    """
    Args:
        model: in evaluation mode; a ``PanopticFPN`` or an ``OCRSemanticSegmentor``.
    """

    def __init__(self, cfg: CfgNode, model: nn.Module):
        self._cfg, self._model = cfg, model
        self._predict = (
            self._panoptic if cfg.MODEL.META_ARCHITECTURE == "PanopticFPN" else self._semantic
        )

    @torch.inference_mode()
    def __call__(self, image: np.ndarray) -> Prediction:
        """
        Args:
            image: uint8 [H,W,3] in the channel order INPUT.FORMAT.
        """
        return self._predict(model_input(self._cfg, image))

    def _semantic(self, inputs: dict[str, Any]) -> Prediction:
        labels, confidence = self._model.confident_labels(inputs)
        return Prediction(labels.cpu().numpy(), confidence.cpu().numpy())

    def _panoptic(self, inputs: dict[str, Any]) -> Prediction:
        output = self._model([inputs])[0]
        ids, segments = output["panoptic_seg"]
        labels, confidence = confident_argmax(output["sem_seg"].unbind(0))
        scores = torch.full((len(segments) + 1,), -1.0, device=ids.device)  # of each segment's id
        scores[0] = 0
        for segment in segments:
            if segment["isthing"]:
                scores[segment["id"]] = segment["score"]
        scores = scores[ids.long()]
        return Prediction(
            labels.cpu().numpy(),
            torch.where(scores < 0, confidence, scores).cpu().numpy(),
            ids.cpu().numpy(),
            tuple(segments),
            output["instances"].to("cpu"),
        )
