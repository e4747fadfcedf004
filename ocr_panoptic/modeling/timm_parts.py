"""Replacements for parts of timm's networks: HRNet's fusion, Swin's blocks, SAME padding."""

from collections.abc import Callable, Collection
from typing import Any

import torch.nn.functional as F
from timm.layers import Conv2dSame, ConvNormAct
from timm.models import _efficientnet_blocks as blocks
from timm.models.hrnet import HighResolutionModule
from timm.models.resnet import BasicBlock, Bottleneck
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn

from ocr_panoptic.layers.folding import fold_into
from ocr_panoptic.layers.resize import resize


class BilinearFusion(nn.Module):
    """
    HRNet's exchange between branches, with coarse maps of any size enlarged bilinearly.

    The published segmentation code does the same. timm's exchange, which is meant for classifiers,
    uses nearest neighbours and needs matching sizes. Parameters have the same names as in timm.

    Args:
        module: timm's exchange, whose layers are reused.
        align_corners: how to resize maps, see :func:`.resize`.
        enlarge_twice: whether to enlarge in two steps: by the ratio of the strides, then to the
            size of the finer map, as in mmsegmentation. The authors' and NVIDIA's code uses one
            step. The results differ if the finer map's size is not a multiple of the ratio.
    """

    def __init__(
        self, module: HighResolutionModule, align_corners: bool, enlarge_twice: bool = False
    ):
        super().__init__()
        self.branches, self.fuse_act = module.branches, module.fuse_act
        self.fuse_layers, self.align_corners = module.fuse_layers, align_corners
        self.enlarge_twice = enlarge_twice
        rows = self.fuse_layers if len(self.branches) > 1 else ()
        for i, row in enumerate(rows):
            for path in row[i + 1 :]:
                assert isinstance(path[2], nn.Upsample)
                path[2] = nn.Identity()

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        """Return the fused maps [N, C, h, w] of the branches, the finest first."""
        x = [branch(map_) for branch, map_ in zip(self.branches, x, strict=True)]
        if len(x) == 1:
            return x
        fused = []
        for i, row in enumerate(self.fuse_layers):
            y = row[0](x[0]) if i else x[0]
            for j in range(1, len(x)):
                map_ = row[j](x[j])
                if j > i:
                    if self.enlarge_twice:
                        map_ = resize(map_, [2 ** (j - i) * side for side in map_.shape[2:]])
                    map_ = resize(map_, x[i].shape[2:], self.align_corners)
                y = y + map_
            fused.append(self.fuse_act(y))
        return fused


class WindowBlock(nn.Module):
    """
    A Swin block that pads the map before it shifts the windows, as in the published detectors.

    timm shifts first, so its attention mask does not separate pixels that wrap around from pixels
    at the opposite border.
    """

    window_size: tuple[int, int]
    attend: Callable[[Tensor], Tensor]  # timm's attention in windows

    def __init__(self, block: nn.Module):
        nn.Module.__init__(self)  # timm's own constructor would create new parts
        vars(self).update(vars(block))

    def _attn(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        below, right = (-side % window for side, window in zip((height, width), self.window_size))
        return self.attend(F.pad(x, (0, 0, 0, right, 0, below)))[:, :height, :width]


class SwinBlock(WindowBlock, SwinTransformerBlock):
    attend = SwinTransformerBlock._attn


class SwinV2Block(WindowBlock, SwinTransformerV2Block):
    attend = SwinTransformerV2Block._attn


class EvenConv2dSame(nn.Module):
    """
    A convolution with TensorFlow's SAME padding, for maps whose size is a multiple of the stride.

    For such maps the padding is constant. timm's ``Conv2dSame`` computes it from each map's size,
    which would add a chain of size computations to an exported ONNX graph.

    Attributes:
        pads: padding on the left, right, top and bottom, in pixels.
    """

    def __init__(self, conv: Conv2dSame):
        super().__init__()
        self.conv = conv
        sides = zip(conv.kernel_size, conv.stride, conv.dilation)
        height, width = (max((k - 1) * d + 1 - s, 0) for k, s, d in sides)
        self.pads = (width // 2, width - width // 2, height // 2, height - height // 2)

    def forward(self, x: Tensor) -> Tensor:
        x, conv = F.pad(x, self.pads), self.conv
        return F.conv2d(x, conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)


def replace(network: nn.Module, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> None:
    """Replace each module whose class is exactly ``kind`` by ``make(module)``, in place."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is kind:
                setattr(parent, name, make(module))


# Blocks that call their convolutions and norms in the order in which these are registered.
IN_ORDER = (
    *(BasicBlock, Bottleneck, ConvNormAct),
    *(blocks.ConvBnAct, blocks.DepthwiseSeparableConv),
    *(blocks.InvertedResidual, blocks.EdgeResidual),
)


def fold_network(network: nn.Module, outputs: Collection[str]) -> None:
    """
    Fold batch norms, in place, into the convolutions before them.

    Norms are folded only in modules that are known to call their layers in order. A convolution
    named in ``outputs`` does not change, because its output is a feature.
    """
    for module in network.modules():
        is_sequence = isinstance(module, nn.Sequential)
        is_sequence = is_sequence and type(module).forward is nn.Sequential.forward
        if module is not network and not is_sequence and not isinstance(module, IN_ORDER):
            continue
        children = list(module.named_children())
        for (conv_name, conv), (name, norm) in zip(children, children[1:]):
            if module is network and conv_name in outputs:
                continue
            if isinstance(conv, nn.Conv2d) and fold_into(conv, norm):
                setattr(module, name, getattr(norm, "act", nn.Identity()))
