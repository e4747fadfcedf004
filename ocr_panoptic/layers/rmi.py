"""The region mutual information loss (RMI; Zhao et al., 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ocr_panoptic.errors import UserError

from .bands import full_size
from .resize import one_hot_labels

POOLING = 4  # factor by which probabilities and labels are pooled before neighbourhoods are taken
NEIGHBOURHOOD = 3  # side of a neighbourhood in pooled pixels, so that it has 9 values
RIDGE = 5e-4  # added to the diagonals of the two matrices that must be positive definite


def region_mutual_information(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    class_weights: Tensor | None = None,
    align_corners: bool = False,
) -> Tensor:
    """
    Return an upper bound of the negative mutual information between labels and prediction.

    The one-hot labels and the predicted probabilities are pooled by a factor of 4. Let y be the
    3x3 neighbourhoods (9 values) of the pooled labels, p the 3x3 neighbourhoods of the pooled
    probabilities, and S_y, S_p and S_yp their scatter matrices. The loss of an image and class is
    ½ log det(S_y - S_yp (S_p + 5e-4 I)⁻¹ S_ypᵀ + 5e-4 I) / 9, with the constants of the published
    code of hierarchical multi-scale attention. If the matrix in the determinant is not positive
    definite because of rounding, the loss is 0. The result is averaged over images and summed over
    classes; it can be negative.

    Args:
        logits: logits [N, K, h, w]; the probability is the sigmoid of the resized logits, and 0 at
            ignored pixels. NaN logits give a NaN loss.
        targets: int64 labels [N, H, W], at least 8 pixels on each side.
        ignore_value: label of ignored pixels.
        class_weights: factor [K] for each class's loss; None means 1 for all classes.
        align_corners: convention for resizing logits to the size of the labels, see
            :func:`.resize`.

    Returns:
        a float64 scalar, under autocast too, computed without GPU synchronisation
    """
    least = POOLING * (NEIGHBOURHOOD - 1)
    if min(targets.shape[1:]) < least:
        raise UserError(
            f"the loss rmi needs images of at least {least} x {least} pixels, found "
            f"{' x '.join(map(str, targets.shape[1:]))}"
        )
    truth = one_hot_labels(targets, logits.shape[1], ignore_value, targets.shape[1:])
    valid = (targets != ignore_value)[:, None]
    probabilities = full_size(logits, targets, align_corners).sigmoid()
    y = _neighbourhoods(truth)
    p = _neighbourhoods(probabilities * valid + 1e-6)

    ridge = RIDGE * torch.eye(p.shape[2], dtype=p.dtype, device=p.device)
    s_yp = y @ p.mT
    explained = torch.linalg.solve_ex(p @ p.mT + ridge, s_yp.mT)[0]
    m = y @ y.mT - s_yp @ explained + ridge
    # A matrix without a Cholesky factor is replaced before the factorisation with gradients. A
    # matrix that is not finite is kept, so that the loss shows that training has diverged.
    failed = (torch.linalg.cholesky_ex(m.detach())[1] != 0) & m.isfinite().all(dim=(-2, -1))
    identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    safe = torch.where(failed[..., None, None], identity, m)
    diagonal = torch.linalg.cholesky_ex(safe)[0].diagonal(dim1=-2, dim2=-1)
    losses = (diagonal + 1e-8).log().sum(dim=-1).mean(dim=0) / p.shape[2]
    return losses.sum() if class_weights is None else (losses * class_weights).sum()


def _neighbourhoods(maps: Tensor) -> Tensor:
    """
    Return all 3x3 neighbourhoods of the pooled maps, minus the mean neighbourhood.

    Maps [N, K, H, W] give float64 [N, K, 9, number of neighbourhoods].
    """
    maps = F.avg_pool2d(maps, POOLING, POOLING, padding=POOLING // 2).double()
    n, k, h, w = maps.shape
    rows, columns = h - NEIGHBOURHOOD + 1, w - NEIGHBOURHOOD + 1
    shifted = [
        maps[:, :, i : i + rows, j : j + columns].reshape(n, k, 1, -1)
        for i in range(NEIGHBOURHOOD)
        for j in range(NEIGHBOURHOOD)
    ]
    vectors = torch.cat(shifted, dim=2)
    return vectors - vectors.mean(dim=-1, keepdim=True)
