"""
Losses computed for each class separately, and a cross-entropy that gives rare classes more weight.

All losses except this cross-entropy resize the logits to the size of the labels.

Shape shorthand: N images, K classes, h w size of the logits, H W size of the labels. ``logits`` is
a tensor [N, K, h, w]. ``targets`` holds labels, int64 [N, H, W], in 0..K - 1, or ``ignore_value``
at ignored pixels; a loss is 0 if all pixels are ignored. See :func:`.resize` for ``align_corners``.
``class_weights`` [K] weight the classes in a sum or average; None means equal weights. The losses
are computed in float32 or better, under autocast too, and without GPU synchronisation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .bands import compute_in_bands, full_size
from .resize import one_hot_labels


def binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    class_weights: Tensor | None = None,
    align_corners: bool = False,
) -> Tensor:
    """
    Return the sigmoid cross-entropy, summed over the classes and averaged over valid pixels.

    The average divides by the number of valid pixels plus 1, as in the published code of
    hierarchical multi-scale attention.
    """

    def losses(full: Tensor, labels: Tensor) -> Tensor:
        truth, valid = _truth(full, labels, ignore_value)
        losses = F.binary_cross_entropy_with_logits(full, truth, reduction="none")
        return (losses * valid).sum(dim=(0, 2, 3))

    sums = compute_in_bands(losses, logits, targets, align_corners, summed=True)
    if class_weights is not None:
        sums = sums * class_weights
    return sums.sum() / ((targets != ignore_value).sum() + 1)


def dice_loss(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    class_weights: Tensor | None = None,
    align_corners: bool = False,
) -> Tensor:
    """
    Return the dice loss, averaged over the classes that occur in the labels.

    A class's loss is 1 - 2 Σ p y / (Σ p² + Σ y²), with the class's softmax probability p and
    one-hot label y at each valid pixel of all images (Milletari et al., V-Net, 2016).
    The result is a scalar in [0, 1]; 0 if all pixels are ignored.
    """

    def sums(full: Tensor, labels: Tensor) -> Tensor:
        truth, valid = _truth(full, labels, ignore_value)
        p = full.softmax(dim=1) * valid
        return torch.stack([x.sum(dim=(0, 2, 3)) for x in (p * truth, p.square(), truth)])

    overlap, squares, pixels = compute_in_bands(sums, logits, targets, align_corners, summed=True)
    losses = 1 - 2 * overlap / torch.where(pixels > 0, squares + pixels, 1)
    return _mean_of_present(losses, pixels > 0, class_weights)


def lovasz_softmax(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    class_weights: Tensor | None = None,
    align_corners: bool = False,
) -> Tensor:
    """
    Return the Lovász-softmax loss, averaged over the classes that occur in the labels.

    A class's loss is the Lovász extension of 1 - IoU, evaluated at the errors of the class's
    softmax probabilities at the valid pixels of all images (Berman et al., 2018).
    The result is a scalar in [0, 1]; 0 if all pixels are ignored.
    """
    logits = full_size(logits, targets, align_corners)
    truth, valid = _truth(logits, targets, ignore_value)
    # Ignored pixels have error 0 and lie outside the class, so they do not change the loss.
    errors = (truth - logits.softmax(dim=1)).abs() * valid
    per_class = zip(errors.transpose(0, 1), truth.transpose(0, 1))
    losses = torch.stack([(e * _jaccard_steps(e, y)).sum() for e, y in per_class])
    return _mean_of_present(losses, truth.sum(dim=(0, 2, 3)) > 0, class_weights)


@torch.no_grad()
def _jaccard_steps(errors: Tensor, truth: Tensor) -> Tensor:
    """
    Return the gradient of one class's Lovász extension, in the shape and dtype of ``errors``.

    Suppose that the pixels become wrong one after another, the largest error first. A pixel's
    gradient is the increase of 1 - IoU when the pixel becomes wrong. ``errors`` and the one-hot
    labels ``truth`` are [N, H, W].
    """
    order = errors.flatten().argsort(descending=True)
    # Use float64: the steps are differences between nearly equal numbers.
    inside = truth.flatten()[order].double()
    total = inside.sum()
    jaccard = 1 - (total - inside.cumsum(0)) / (total + (1 - inside).cumsum(0))
    steps = torch.empty_like(errors).flatten()
    steps[order] = torch.diff(jaccard, prepend=jaccard.new_zeros(1)).to(steps)
    return steps.view_as(errors)


def _truth(logits: Tensor, targets: Tensor, ignore_value: int) -> tuple[Tensor, Tensor]:
    """Return one-hot labels [N, K, H, W], 0 at ignored pixels, and a valid mask [N, 1, H, W]."""
    truth = one_hot_labels(targets, logits.shape[1], ignore_value, targets.shape[1:]).to(logits)
    return truth, (targets != ignore_value)[:, None]


def _mean_of_present(losses: Tensor, present: Tensor, class_weights: Tensor | None) -> Tensor:
    """Return the weighted mean of the losses [K] over the present classes; 0 if all are absent."""
    weights = present.to(losses) if class_weights is None else present * class_weights
    weight = weights.sum()
    return (losses * weights).sum() / torch.where(weight > 0, weight, 1)


def rarity_weighted_cross_entropy(logits: Tensor, targets: Tensor, ignore_value: int) -> Tensor:
    """
    Return the mean cross-entropy over the labelled pixels, with larger weights for rare classes.

    A class's weight is 1 minus its share of the labelled pixels, as in SegFix's published code. If
    all pixels are ignored or have the same class, the loss and its gradients are 0 (NaN in the
    published code). The logits [N, K, H, W] must have the size of the labels.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = torch.stack([(targets == k).sum() for k in range(logits.shape[1])])
    total = counts.sum()
    weights = 1 - counts / total.clamp(min=1).to(logits.dtype)
    losses = F.cross_entropy(
        logits, targets, weights, ignore_index=ignore_value, reduction="none"
    ).sum()
    weight = (weights * counts).sum()
    return losses / torch.where(weight > 0, weight, 1)
