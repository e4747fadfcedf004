"""The logits that a network computes before its labels, for pictures and for checks of exports."""

from typing import Any

from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from torch import Tensor

from ocr_panoptic.errors import UserError

from .semantic_segmentor import OCRSemanticSegmentor


def semantic_logits(network: Any, batched_inputs: list[dict]) -> Tensor | tuple[Tensor, Tensor]:
    """
    Return the semantic logits [N, K, h, w] of a batch, from a single forward pass.

    If the network has a refined head, the result is a tuple (coarse logits, final logits).
    """
    if isinstance(network, PanopticFPN):
        images = network.preprocess_image(batched_inputs)
        return network.sem_seg_head.layers(network.backbone(images.tensor))
    if isinstance(network, OCRSemanticSegmentor):
        return network.layers(batched_inputs)
    raise UserError(
        f"The model is a {type(network).__name__}, which has no semantic logits; expected "
        "PanopticFPN or OCRSemanticSegmentor."
    )
