"""Parts of timm's networks in other forms: HRNet's exchange, Swin's windows, SAME padding."""

from collections.abc import Callable

import torch.nn.functional as F
from timm.layers import Conv2dSame
from timm.models.hrnet import HighResolutionModule
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn

from ocr_panoptic.layers.resize import resize


class BilinearFusion(nn.Module):
    """
    HRNet's exchange between its branches as the published segmentation codes have it: coarse maps
    are enlarged bilinearly, whatever the sizes. (timm's, of a classifier, takes the nearest
    neighbours and needs sizes that fit.) Parameters and their names are timm's.

    Args:
        module: of timm, whose parts are taken.
        align_corners: see :func:`.resize`.
        enlarge_twice: enlarge by the ratio of the strides, and resize that to the size of the finer
            map, as mmsegmentation; False resizes at once, as the authors' code and NVIDIA's. The
            two differ where the finer map is no multiple of that ratio: the first blurs it more.
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
            for j in range(i + 1, len(row)):
                assert isinstance(row[j][2], nn.Upsample)
                row[j][2] = nn.Identity()

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        """
        Return the maps of the branches [N, C, h, w], the finest first, each with what it gets from
        the others.
        """
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
    A block of Swin that pads the map before it shifts the windows, as the published detectors and
    torchvision do. timm shifts first: pixels that go round then lie before the padding, where its
    mask does not part them from the opposite border.

    Args:
        block: timm's block, whose parts and settings are taken.
    """

    def __init__(self, block: nn.Module):
        nn.Module.__init__(self)  # timm's own would make new parts
        vars(self).update(vars(block))

    def _attn(self, x: Tensor) -> Tensor:
        """Return the windows' attention of [N, h, w, C], in the same shape."""
        height, width = x.shape[1:3]
        below, right = (-side % window for side, window in zip((height, width), self.window_size))
        return super()._attn(F.pad(x, (0, 0, 0, right, 0, below)))[:, :height, :width]


class SwinBlock(WindowBlock, SwinTransformerBlock):
    """A block of Swin whose windows divide the map."""


class SwinV2Block(WindowBlock, SwinTransformerV2Block):
    """A block of Swin V2 whose windows divide the map."""


class EvenConv2dSame(nn.Module):
    """
    TensorFlow's SAME padding, of timm's ``tf_`` networks, on maps whose sides are multiples of the
    stride: the padding is constant. On others it depends on the size of the map: a computation
    before every convolution, and, in an export to ONNX, expressions nested as deep as the network.

    Attributes:
        pads: left, right, top, bottom.
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


def replace(
    network: nn.Module, kind: type[nn.Module], make: Callable[[nn.Module], nn.Module]
) -> None:
    """Put what ``make`` gives of every module of a kind, and of no subclass, in its place."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is kind:
                setattr(parent, name, make(module))
