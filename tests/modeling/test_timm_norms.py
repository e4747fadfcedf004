"""The batch norms of timm's networks, frozen, synchronised and folded: their function stays."""

import pytest
import timm
import torch
from detectron2.layers import FrozenBatchNorm2d
from torch import nn

from ocr_panoptic.layers import SyncBatchNorm
from ocr_panoptic.modeling import TimmBackbone

# The first four have norm and activation in one module, ghostnet a convolution as an output.
NETWORKS = (
    *("tf_efficientnet_lite0", "mobilenetv4_conv_small", "tf_efficientnetv2_b0", "regnety_002"),
    *("ghostnet_100", "resnet10t", "convnext_atto"),
)
NORMS = {"BN": nn.BatchNorm2d, "SyncBN": SyncBatchNorm, "FrozenBN": FrozenBatchNorm2d}
LEFT = {"ghostnet_100": 5, "resnet10t": 1}  # norms that no known block holds


def norms(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if getattr(m, "running_var", None) is not None]


def randomised(name: str) -> nn.Module:
    """timm's own network, with norms that are not the identity, in double precision."""
    torch.manual_seed(0)
    network = timm.create_model(name, pretrained=False, features_only=True)
    for norm in norms(network):
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.data.add_(0.3 * torch.randn_like(tensor))
        norm.running_var.mul_(0.5 + torch.rand_like(norm.running_var))
    return network.double().eval()


def backbone_of(source: nn.Module, name: str, norm: str) -> TimmBackbone:
    backbone = TimmBackbone(name, norm=norm)
    state = {k: v for k, v in source.state_dict().items() if k in backbone.body.state_dict()}
    backbone.body.load_state_dict(state)
    return backbone.double().eval()


def assert_same(backbone: TimmBackbone, source: nn.Module) -> None:
    image = torch.randn(1, 3, 32, 64, dtype=torch.float64)
    with torch.no_grad():
        found, expected = backbone(image), source(image)
    for name, reference in zip(source.feature_info.module_name(), expected, strict=True):
        assert reference.std() > 1e-6
        y = found[name]
        torch.testing.assert_close(
            y, reference, rtol=1e-9, atol=1e-9 * reference.abs().max().item()
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, norm",
    [
        (NETWORKS[0], "BN"),
        (NETWORKS[0], "SyncBN"),
        *(pytest.param(name, "FrozenBN", marks=pytest.mark.slow) for name in NETWORKS),
    ],
)
def test_features_are_timms_with_every_norm_folded_or_not(name, norm):
    """Frozen norms learn nothing, and are the same in training."""
    source = randomised(name)
    backbone = backbone_of(source, name, norm)
    assert all(isinstance(module, NORMS[norm]) for module in norms(backbone))
    if norm == "FrozenBN":
        assert not any("bn" in name for name, _ in backbone.named_parameters())
        backbone.train()
    assert_same(backbone, source)
    backbone.eval().fold_norms()
    assert len(norms(backbone)) == LEFT.get(name, 0)
    assert_same(backbone, source)
