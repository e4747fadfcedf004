"""Boxes pooled by all threads."""

from concurrent.futures import ThreadPoolExecutor

import torch
from detectron2.layers import ROIAlign
from torch import Tensor, nn


class ThreadedROIAlign(nn.Module):
    """Detectron2's ``ROIAlign`` for inference, on a CPU by as many threads as PyTorch has:
    torchvision's kernel uses one. A box is pooled by itself, so the result is the same."""

    def __init__(self, align: ROIAlign):
        super().__init__()
        self.align = align

    def forward(self, input: Tensor, rois: Tensor) -> Tensor:
        """See Detectron2's: [N, C, h, w] and [R, 5] to [R, C, *output_size]."""
        threads = torch.get_num_threads()
        # Threads do not inherit an autocast.
        alone = input.is_cuda or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if alone or min(threads, len(rois)) < 2:
            return self.align(input, rois)
        with ThreadPoolExecutor(threads) as executor:
            parts = executor.map(lambda part: self.align(input, part), rois.chunk(threads))
            return torch.cat(list(parts))
