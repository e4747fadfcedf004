"""The batch norms of timm's networks, frozen, synchronised and folded: their function stays."""

import pytest
import timm
import torch
from detectron2.layers import FrozenBatchNorm2d
from torch import nn

from ocr_panoptic.layers import SyncBatchNorm
from ocr_panoptic.modeling import TimmBackbone
from support.segmentors import trained_like

# The first four have norm and activation in one module, ghostnet a convolution as an output.
NETWORKS = (
    *("tf_efficientnet_lite0", "mobilenetv4_conv_small", "tf_efficientnetv2_b0", "regnety_002"),
    *("ghostnet_100", "resnet10t", "convnext_atto"),
)
NORMS = {"BN": nn.BatchNorm2d, "SyncBN": SyncBatchNorm, "FrozenBN": FrozenBatchNorm2d}
LEFT = {"ghostnet_100": 5, "resnet10t": 1}  # norms that no known block holds


def norms(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if getattr(m, "running_var", None) is not None]


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
        most = reference.abs().max().item()
        torch.testing.assert_close(found[name], reference, rtol=1e-9, atol=1e-9 * most)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, norm",
    [
        (NETWORKS[0], "BN"),
        (NETWORKS[0], "SyncBN"),
        *((name, "FrozenBN") for name in NETWORKS),
    ],
)
def test_features_are_timms_with_every_norm_folded_or_not(name, norm):
    """Frozen norms learn nothing, and are the same in training."""
    torch.manual_seed(0)
    source = trained_like(timm.create_model(name, pretrained=False, features_only=True)).double()
    backbone = backbone_of(source, name, norm)
    assert all(isinstance(module, NORMS[norm]) for module in norms(backbone))
    if norm == "FrozenBN":
        assert not any("bn" in name for name, _ in backbone.named_parameters())
        backbone.train()
    assert_same(backbone, source)
    backbone.eval().fold_norms()
    assert len(norms(backbone)) == LEFT.get(name, 0)
    assert_same(backbone, source)
