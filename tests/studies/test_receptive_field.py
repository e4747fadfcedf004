"""Receptive fields, compared with brute force and with a network of known gradient."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling import Backbone, build_backbone
from torch import Tensor, nn

from ocr_panoptic.config.files import load_config
from ocr_panoptic.modeling.timm_backbone import TimmBackbone
from studies.fields.__main__ import main
from studies.fields.effective import effective_fields, field_size
from studies.fields.receptive import PixelBox, receptive_boxes, receptive_sizes
from support.tiny_runs import CONFIGS, SEMANTIC_CONFIG


class Features(Backbone):
    """A backbone made from a function, with positive parameters, so that paths cannot cancel."""

    size_divisibility = 0

    def __init__(self, layers: nn.Module, forward=None):
        super().__init__()
        self.layers, self.function = layers, forward
        for module in layers.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.constant_(module.weight, 1 / module.weight[0].numel())
        self.eval().double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.function(self.layers, x) if self.function else self.layers(x)}


def conv(kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, channels: int = 3):
    return nn.Conv2d(3, channels, kernel, stride, padding, dilation)


def meeting_branches(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Join a residual branch, an enlarged coarse map, and a map of the image's nearest pixels."""
    fine = F.relu(layers[0](x))
    fine = fine + layers[1](fine)
    coarse = F.max_pool2d(layers[2](fine), 3, 2, 1)
    enlarged = F.interpolate(coarse, fine.shape[2:], mode="bilinear", align_corners=False)
    nearest = F.interpolate(F.avg_pool2d(x, 2, ceil_mode=True), fine.shape[2:])
    return layers[3](torch.cat([fine, enlarged, nearest], dim=1))


NETWORKS = {
    "strides and dilations": Features(nn.Sequential(conv(5, 2, 2), conv(3, 1, 2, 2), conv(2, 3))),
    "padding on one side": Features(nn.Sequential(nn.ZeroPad2d((0, 1, 0, 2)), conv(3, 2))),
    "a kernel that is no square": Features(nn.Conv2d(3, 2, (1, 5), padding=(0, 2))),
    "meeting branches": Features(
        nn.ModuleList([conv(3, 2, 1), conv(3, 1, 3, 3), conv(1), nn.Conv2d(9, 1, 1)]),
        meeting_branches,
    ),
    "corners kept": Features(
        nn.Sequential(conv(3, 4), nn.UpsamplingBilinear2d((9, 11)), conv(3))  # align_corners=True
    ),
    "norms": Features(nn.Sequential(conv(3), nn.BatchNorm2d(3), nn.Hardswish(), conv(3, 2))),
}


def seen(network: Backbone, height: int, width: int) -> PixelBox:
    """Find the field by changing the image row by row and column by column."""
    image = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0)).double()
    ends = []
    for axis, n in ((2, height), (3, width)):
        changed = image.repeat(n, 1, 1, 1)
        for i in range(n):
            changed[i].select(axis - 1, i).add_(2)  # above all other values, for the pooling
        maps, base = network(changed)["out"], network(image)["out"]
        y, x = maps.shape[2] // 2, maps.shape[3] // 2
        found = ((maps - base)[:, :, y, x].abs() > 1e-9).any(dim=1).nonzero().flatten()
        ends += [found.min().item(), found.max().item()]
    return PixelBox(*map(float, ends))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("size", [(24, 32), (37, 21)])
def test_theory_equals_brute_force(name, size):
    assert receptive_boxes(NETWORKS[name], *size) == {"out": seen(NETWORKS[name], *size)}


@pytest.mark.slow
def test_efficientnet_with_positive_weights():
    """The network has residuals, TensorFlow's padding, and stages dilated by timm."""
    network = TimmBackbone("tf_efficientnet_lite0", output_stride=8, norm="BN").double().eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 0.3 / module.weight[0].numel())  # ReLU6 stays below 6
    image = torch.rand(1, 3, 96, 128, dtype=torch.float64, requires_grad=True)
    boxes = receptive_boxes(network, 96, 128)
    for name, feature in network(image).items():
        cell = feature[0, 0, feature.shape[2] // 2, feature.shape[3] // 2]
        (gradient,) = torch.autograd.grad(cell, image, retain_graph=True)
        ys, xs = gradient[0].sum(dim=0).nonzero().T
        assert boxes[name] == PixelBox(*map(float, (ys.min(), ys.max(), xs.min(), xs.max())))
    # By hand: the stem sees 3, a 3x3 at stride 2 adds 4, the next adds 4, one at stride 4 adds 8.
    first, second, *_ = receptive_sizes(network).values()
    assert (first, second) == ((7, 7), (19, 19))


@pytest.mark.slow
def test_fpn_and_hrnet():
    """
    The last stage of ResNet-50 is published to see 483 pixels; a 3x3 at stride 32 adds 64.

    See Araujo, Norris and Sim, "Computing Receptive Fields of Convolutional Neural Networks", 2019.
    """
    cfg = load_config(str(CONFIGS / "Custom-PanopticSegmentation/panoptic_fpn_R_50.yaml"), [])
    assert receptive_sizes(build_backbone(cfg).eval())["p5"] == (547, 547)

    # HRNet's stem is a 3x3; its branches then meet at stride 32.
    boxes = receptive_boxes(TimmBackbone("hrnet_w18", norm="BN").eval(), 96, 128)
    assert boxes.pop("stem").size == (3, 3)
    assert {*boxes.values()} == {PixelBox(0, 95, 0, 127)}


def test_a_global_pooling_sees_everything():
    """Squeeze and excitation has a global pooling; later layers keep its reach."""

    def excited(layers, x):
        x = layers[0](x)
        return layers[2](x * layers[1](x.mean((2, 3), keepdim=True)).sigmoid())

    network = Features(nn.ModuleList([conv(3, 2), conv(1), conv(3)]), excited)
    assert receptive_sizes(network)["out"] == (math.inf, math.inf)
    box = receptive_boxes(network, 32, 40)["out"]
    # The stride skips the last pixels.
    assert box == seen(network, 32, 40) == PixelBox(0, 30, 0, 38)


def test_an_operator_of_unknown_reach_raises():
    network = Features(conv(3), lambda layers, x: layers(x).flip(2))
    with pytest.raises(ValueError, match=r"What aten.flip.* \[1, 3, 30, 30\] .* is not known"):
        receptive_boxes(network, 32, 32)
    network = Features(nn.ConvTranspose2d(3, 3, 2, 2))
    with pytest.raises(ValueError, match="transposed"):
        receptive_boxes(network, 32, 32)


def test_effective_field_of_box_filters():
    """
    With n filters of k x k, the field has a variance of n (k^2 - 1) / 12 on each axis.

    The field is nearly Gaussian with standard deviation s, so 2 pi s^2 ln(1 / 0.0455) pixels are
    above 4.55 % of the largest.
    """
    number, width, side = 12, 5, 81
    channels = [3] + [1] * (number - 1)
    filters = [nn.Conv2d(c, 1, width, padding=width // 2) for c in channels]
    network = Features(nn.Sequential(*filters))
    images = [torch.randn(3, side, side, dtype=torch.float64) for _ in range(2)]
    field = effective_fields(network, images)["out"]
    places = torch.arange(side, dtype=torch.float64) - side // 2
    share = field.sum(dim=1) / field.sum()
    variance = number * (width**2 - 1) / 12
    assert (share * places).sum() == pytest.approx(0, abs=1e-12)
    assert (share * places**2).sum() == pytest.approx(variance, rel=1e-12)
    gaussian = math.sqrt(2 * math.pi * variance * math.log(1 / 0.0455))
    assert field_size(field) == pytest.approx(gaussian, rel=0.02)
    # In theory it is 1 + 4 n; with more filters, the effective field is a smaller part.
    assert receptive_sizes(network)["out"] == (49, 49)


def test_effective_field_combines_channels_and_images():
    """
    The mean square over random weights of the channels is the sum of the channels' squares.

    Two channels look to different sides; one is five times as strong as the other.
    """
    network = Features(nn.Conv2d(3, 2, (1, 3), padding=(0, 1), bias=False))
    weight = nn.init.zeros_(network.layers.weight).data
    weight[0, :, 0, 0], weight[1, :, 0, 2] = 5, 1
    images = [torch.zeros(3, 4, 6, dtype=torch.float64)] * 400
    field = effective_fields(network, images)["out"]
    assert field.nonzero().tolist() == [[2, 2], [2, 4]]
    assert field[2, 2] == pytest.approx(5, rel=0.1) and field[2, 4] == pytest.approx(1, rel=0.1)


def test_images_are_padded_for_the_network_and_the_padding_does_not_count(monkeypatch):
    network, sizes = Features(conv(9, 4, 4)), []
    monkeypatch.setattr(Features, "size_divisibility", 16)
    network.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[2:]))
    field = effective_fields(network, [torch.zeros(3, 17, 30, dtype=torch.float64)])["out"]
    assert sizes == [(32, 32)] and field.shape == (17, 30)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    file = tmp_path / "fields.json"
    arguments = ["--config-file", str(SEMANTIC_CONFIG), "--size", "48,64", "--json", str(file)]
    main([*arguments, "MODEL.TIMM.NAME", "resnet10t", "MODEL.TIMM.NORM", "BN"])
    rows = json.loads(file.read_text())
    assert [row["feature"] for row in rows] == ["act1", "layer1", "layer2", "layer3", "layer4"]
    # The stem: a 3x3 at stride 2, then two 3x3 at stride 2.
    assert rows[0]["theoretical"] == [11, 11] and rows[0]["stride"] == 2
    assert rows[0]["theoretical_share"] == pytest.approx(121 / (48 * 64))
    assert rows[4]["theoretical_share"] == 1.0
    for row in rows:
        assert 0 < row["effective_share"] <= row["theoretical_share"]
    assert "| act1       | 2        | 11 x 11 " in capsys.readouterr().out
