"""Swin's windows on maps that they do not divide."""

import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn


class WindowBlock:
    """
    Pads the map before the windows are shifted, as the published detectors and torchvision do.
    timm shifts first: pixels that go round then lie before the padding, where its mask does not
    part them from the opposite border.
    """

    def _attn(self, x: Tensor) -> Tensor:
        """
        Args:
            x: [N, h, w, C]

        Returns:
            what the windows' attention gives, [N, h, w, C]
        """
        height, width = x.shape[1:3]
        below, right = (-side % window for side, window in zip((height, width), self.window_size))
        return super()._attn(F.pad(x, (0, 0, 0, right, 0, below)))[:, :height, :width]


class SwinBlock(WindowBlock, SwinTransformerBlock):
    """A block of Swin whose windows divide the map."""


class SwinV2Block(WindowBlock, SwinTransformerV2Block):
    """A block of Swin V2 whose windows divide the map."""


def pad_before_shifting(network: nn.Module) -> None:
    """Turn every block of a Swin of timm into one of these classes, in place."""
    blocks = {SwinTransformerBlock: SwinBlock, SwinTransformerV2Block: SwinV2Block}
    for module in network.modules():
        if type(module) in blocks:
            module.__class__ = blocks[type(module)]
