"""The loss of region mutual information (RMI; Zhao et al., 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ocr_panoptic.errors import UserError

from .bands import full_size
from .resize import one_hot_labels

POOLING = 4  # of probabilities and truth, before neighbourhoods are taken
NEIGHBOURHOOD = 3  # its side in pooled positions: vectors of 9
RIDGE = 5e-4  # on the diagonals of the two matrices that have to be positive definite


def region_mutual_information(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    class_weights: Tensor | None = None,
    align_corners: bool = False,
) -> Tensor:
    """
    The negative of a lower bound of the mutual information between the neighbourhoods of truth and
    prediction, with the constants of the published code of hierarchical multi-scale attention:
    ½ log det(S_y - S_yp (S_p + 5e-4)⁻¹ S_ypᵀ + 5e-4) of the 9 probabilities of a neighbourhood,
    divided by 9, averaged over images and summed over classes. It may be negative.

    Computed in float64 from float32 probabilities, in autocast too. An image's class whose matrix
    is not positive definite by rounding counts 0, but one of NaN logits is NaN; the GPU is not
    waited for.

    Args:
        logits: [N, K, h, w]; their sigmoid, at the size of the labels, is the probability
        targets: int64 labels [N, H, W]
        ignore_value: label of the pixels that have probability and truth 0
        class_weights: [K], each a factor of its class's part; None for 1
        align_corners: of the resizing, see :func:`.resize`

    Returns:
        scalar, float64
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
    # What has no Cholesky factor is replaced before the one that gradients go through.
    # One that is not finite stays, so that a training that has diverged is seen.
    failed = (torch.linalg.cholesky_ex(m.detach())[1] != 0) & m.isfinite().all(dim=(-2, -1))
    identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    safe = torch.where(failed[..., None, None], identity, m)
    diagonal = torch.linalg.cholesky_ex(safe)[0].diagonal(dim1=-2, dim2=-1)
    losses = (diagonal + 1e-8).log().sum(dim=-1).mean(dim=0) / p.shape[2]
    return losses.sum() if class_weights is None else (losses * class_weights).sum()


def _neighbourhoods(maps: Tensor) -> Tensor:
    """
    Args:
        maps: [N, K, H, W]

    Returns:
        float64 [N, K, 9, number of interior positions], less their means
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
