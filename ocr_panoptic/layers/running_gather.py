"""
The gather of :mod:`.ocr` over an image that comes in parts.

Shape shorthand: that of :mod:`.ocr`.
"""

import torch
from torch import Tensor


class RunningGather:
    """
    Object region representations f_k = sum_i softmax_i(m_k)_i x_i over pixels that come tile by
    tile, with the memory of one tile. A running maximum keeps the exponentials in range, and what
    was summed under a lower one is scaled to the new one, as attention kernels do it
    (Milakov and Gimelshein, arXiv 1805.02867).

    Each tile is summed in float32 or better, the sums of the tiles in float64.
    """

    def __init__(self) -> None:
        self._highest: Tensor | None = None  # [N, K]
        self._total: Tensor  # sum_i exp(m_ki - highest_k), [N, K]
        self._weighted: Tensor  # sum_i exp(m_ki - highest_k) x_i, [N, C, K]
        self._dtype: torch.dtype

    def add(self, x: Tensor, m: Tensor) -> None:
        """
        Args:
            x: pixel representations of a tile [N, C, h, w]; every pixel of the image is to come in
                one tile alone
            m: its soft object regions (logits) [N, K, h, w]

        Raises:
            ValueError: if x and m differ in images or size, or from the tiles before.
        """
        if x.shape[0] != m.shape[0] or x.shape[2:] != m.shape[2:]:
            raise ValueError(
                f"Pixel representations {tuple(x.shape)} and soft object regions {tuple(m.shape)} "
                "of a tile must have the same number of images and the same size."
            )
        self._dtype = x.dtype
        dtype = torch.promote_types(x.dtype, torch.float32)
        pixels, logits = x.flatten(2).to(dtype), m.flatten(2).to(dtype)
        highest = logits.amax(dim=2)  # [N, K]
        with torch.autocast(x.device.type, enabled=False):
            weights = (logits - highest[..., None]).exp_()
            total = weights.sum(dim=2).double()
            weighted = torch.matmul(pixels, weights.transpose(1, 2)).double()  # [N, C, K]
        if self._highest is None:
            self._highest, self._total, self._weighted = highest, total, weighted
            return
        if weighted.shape != self._weighted.shape:
            raise ValueError(
                f"A tile has [N, C, K] = {list(weighted.shape)}, the tiles before it "
                f"{list(self._weighted.shape)}."
            )
        both = torch.maximum(self._highest, highest)
        before, now = ((h - both).double().exp_() for h in (self._highest, highest))
        self._total = self._total * before + total * now
        self._weighted = self._weighted * before[:, None] + weighted * now[:, None]
        self._highest = both

    def regions(self) -> Tensor:
        """
        Returns:
            f: object region representations [N, C, K, 1] of all pixels so far, in the dtype of x

        Raises:
            ValueError: if there were none.
        """
        if self._highest is None:
            raise ValueError("There were no pixels to gather regions from.")
        return (self._weighted / self._total[:, None]).to(self._dtype).unsqueeze(3)
