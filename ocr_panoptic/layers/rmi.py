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

    Let y be the 3x3 neighbourhoods (9 values) of the one-hot labels, p the same of the
    probabilities, and S the scatter matrices of y and p. The loss is
    ½ log det(S_y - S_yp (S_p + 5e-4 I)⁻¹ S_ypᵀ + 5e-4 I) / 9, averaged over images and summed over
    classes, with the constants of the published code of hierarchical multi-scale attention. It may
    be negative. If rounding makes a matrix not positive definite, the loss of its image and class
    is 0; NaN logits give NaN.

    The probability is the sigmoid of the logits [N, K, h, w], resized to the labels [N, H, W]. It
    is 0 at ignored pixels. The other arguments are the same as in :func:`.binary_cross_entropy`.
    The result is float64, under autocast too, and computed without GPU synchronisation.
    """
    least = POOLING * (NEIGHBOURHOOD - 1)
    if min(targets.shape[1:]) < least:
        raise UserError(
            f"the loss rmi needs images of at least {least} pixels on a side; these have "
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
    Pool maps [N, K, H, W] and return all 3x3 neighbourhoods, minus their mean over positions.

    The result is float64 [N, K, 9, number of positions].
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
