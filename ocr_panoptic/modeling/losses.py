"""
Losses for semantic segmentation.

Shape shorthand: N images; K classes; h, w size of the logits; H, W size of the labels. ``logits``
[N, K, h, w] are resized to the size of the labels; :func:`.resize` explains ``align_corners``.
``targets`` holds labels, int64 [N, H, W], in 0..K - 1, or ``ignore_value`` at ignored pixels.
``class_weights`` [K] weigh the classes; None stands for equal weights.
"""

import math
from collections.abc import Callable, Sequence

import torch
from detectron2.config import CfgNode, configurable
from torch import Tensor, nn

from ocr_panoptic.errors import IF_OWN, UserError
from ocr_panoptic.layers.bands import pixel_cross_entropy
from ocr_panoptic.layers.class_losses import binary_cross_entropy, dice_loss, lovasz_softmax
from ocr_panoptic.layers.rmi import region_mutual_information

# Arguments: logits [N, K, h, w], labels [N, H, W], ignored label, class weights, align_corners.
Loss = Callable[..., Tensor]


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    class_weights: Tensor | None = None,
    align_corners: bool = False,
) -> Tensor:
    """
    Return the pixel-wise cross-entropy, averaged over the pixels that are not ignored.

    If all pixels are ignored, the loss and its gradients are 0 (PyTorch's mean is NaN).
    """
    losses = pixel_cross_entropy(logits, targets, ignore_value, align_corners)
    weights = _pixel_weights(targets, ignore_value, class_weights)
    return _weighted_mean(losses * weights, weights)


def hard_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    class_weights: Tensor | None = None,
    align_corners: bool = False,
    *,
    threshold: float,
    min_kept: int,
) -> Tensor:
    """
    Return the cross-entropy of hard pixels (online hard example mining).

    A pixel is hard if the probability of its true class is below ``threshold``. If there are fewer
    hard pixels than ``min_kept``, the ``min_kept`` pixels with the lowest probability are used
    instead. As in the published code, the loss of each selected pixel is multiplied by its class
    weight, and the sum is divided by the number of selected pixels.
    """
    losses = pixel_cross_entropy(logits, targets, ignore_value, align_corners)
    # The probability of the true class is exp(-loss), so hard pixels have a high loss. Ignored
    # pixels get -inf: if at most min_kept pixels are valid, the limit is -inf, and all valid pixels
    # are above it.
    ranked = losses.detach().where(targets != ignore_value, -math.inf)
    limit: float | Tensor = -math.log(threshold) if min_kept < ranked.numel() else -math.inf
    if 0 < min_kept < ranked.numel():
        limit = ranked.flatten().topk(min_kept + 1).values[-1].clamp(max=limit)
    kept = ranked > limit
    weights = kept * _pixel_weights(targets, ignore_value, class_weights)
    return _weighted_mean(losses * weights, kept)


def _pixel_weights(targets: Tensor, ignore_value: int, class_weights: Tensor | None) -> Tensor:
    """Return the weight [N, H, W] of each pixel: its class's weight, or 0 for an ignored pixel."""
    valid = targets != ignore_value
    return valid if class_weights is None else class_weights[targets * valid] * valid


def _weighted_mean(weighted: Tensor, weights: Tensor) -> Tensor:
    """Return ``weighted.sum() / weights.sum()``, or 0 if all weights are 0, without a GPU sync."""
    weight = weights.sum()
    return weighted.sum() / torch.where(weight > 0, weight, 1)


class SemSegCriterion(nn.Module):
    """
    The losses of a coarse and a refined prediction.

    Args:
        loss_weight, coarse_loss_weight: weights of the refined and of the coarse loss.
        class_weights: weight of each class in both losses; () for equal weights.
        loss_type, coarse_loss_type: losses of the refined and of the coarse prediction, each a key
            of LOSSES or a weighted sum of keys, such as "0.8 cross_entropy + 0.2 lovasz".
        ohem_threshold: probability of the true class below which a pixel is hard, for loss "ohem".
        ohem_min_kept: smallest number of pixels that loss "ohem" uses.
    """

    class_weights: Tensor | None

    @configurable
    def __init__(
        self,
        *,
        num_classes: int,
        ignore_value: int = 255,
        loss_weight: float = 1.0,
        coarse_loss_weight: float = 0.25,
        class_weights: Sequence[float] = (),
        loss_type: str = "cross_entropy",
        coarse_loss_type: str = "cross_entropy",
        ohem_threshold: float = 0.9,
        ohem_min_kept: int = 100000,
    ):
        super().__init__()
        if len(class_weights) not in (0, num_classes):
            raise UserError(
                f"MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS has length {len(class_weights)}, but there "
                f"are {num_classes} classes; give a weight for each class, or [] for equal weights"
            )
        self.ignore_value = ignore_value
        self.loss_weight, self.coarse_loss_weight = loss_weight, coarse_loss_weight
        self.terms = _terms("LOSS_TYPE", loss_type)
        self.coarse_terms = _terms("COARSE_LOSS_TYPE", coarse_loss_type)
        self.options = {"ohem": {"threshold": ohem_threshold, "min_kept": ohem_min_kept}}
        weights = torch.tensor(class_weights, dtype=torch.float32) if class_weights else None
        self.register_buffer("class_weights", weights, persistent=False)

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        head = cfg.MODEL.SEM_SEG_HEAD
        return {
            "num_classes": head.NUM_CLASSES,
            "ignore_value": head.IGNORE_VALUE,
            "loss_weight": head.LOSS_WEIGHT,
            "coarse_loss_weight": cfg.MODEL.OCR.COARSE_LOSS_WEIGHT,
            "class_weights": head.CLASS_WEIGHTS,
            "loss_type": head.LOSS_TYPE,
            "coarse_loss_type": head.COARSE_LOSS_TYPE,
            "ohem_threshold": head.OHEM_THRESHOLD,
            "ohem_min_kept": head.OHEM_MIN_KEPT,
        }

    def forward(
        self, coarse: Tensor, refined: Tensor, targets: Tensor, align_corners: bool = False
    ) -> dict[str, Tensor]:
        """
        Return the weighted losses "loss_sem_seg" (refined) and "loss_sem_seg_coarse".

        ``coarse`` and ``refined`` are logits [N, K, h, w], which can have different sizes;
        ``targets`` are int64 labels [N, H, W].
        """
        loss = self._sum(self.terms, refined, targets, align_corners)
        coarse_loss = self.coarse_loss(coarse, targets, align_corners)
        return {
            "loss_sem_seg": self.loss_weight * loss,
            "loss_sem_seg_coarse": self.coarse_loss_weight * coarse_loss,
        }

    def coarse_loss(self, logits: Tensor, targets: Tensor, align_corners: bool) -> Tensor:
        """Return the loss of coarse logits, not multiplied by ``coarse_loss_weight``."""
        return self._sum(self.coarse_terms, logits, targets, align_corners)

    def _sum(
        self, terms: Sequence[tuple[float, str]], logits: Tensor, targets: Tensor, corners: bool
    ) -> Tensor:
        arguments = logits, targets, self.ignore_value, self.class_weights, corners
        losses = [w * LOSSES[name](*arguments, **self.options.get(name, {})) for w, name in terms]
        return torch.stack([loss.float() for loss in losses]).sum()


def _terms(key: str, losses: str) -> tuple[tuple[float, str], ...]:
    """Parse a sum such as "0.8 cross_entropy + 0.2 lovasz" into pairs (weight, name of a loss)."""
    terms = []
    for summand in losses.split("+"):
        *weight, name = summand.split() or [""]
        try:
            terms.append((float(*weight) if weight else 1.0, name))
        except (TypeError, ValueError):
            name = ""
        if name not in LOSSES or not terms[-1][0] > 0 or math.isinf(terms[-1][0]):
            raise UserError(
                f"MODEL.SEM_SEG_HEAD.{key} is {losses!r}; expected one of {', '.join(LOSSES)}, or "
                f"a sum with weights above 0, such as 0.8 cross_entropy + 0.2 lovasz. {IF_OWN}"
            )
    return tuple(terms)


# Losses by name in MODEL.SEM_SEG_HEAD.LOSS_TYPE and COARSE_LOSS_TYPE.
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "ohem": hard_cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "dice": dice_loss,
    "lovasz": lovasz_softmax,
    "rmi": region_mutual_information,
}
