"""TensorFlow's SAME padding, of timm's ``tf_`` networks, on maps of known sizes.

How much it pads depends on the size of the map: a computation before every convolution, and, in an
export to ONNX, expressions nested as deep as the network, with which it does not come to its end.
"""

import torch.nn.functional as F
from timm.layers import Conv2dSame
from torch import Tensor, nn


class EvenConv2dSame(nn.Module):
    """
    ``Conv2dSame`` on maps whose sides are multiples of its stride: the padding is constant.

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
