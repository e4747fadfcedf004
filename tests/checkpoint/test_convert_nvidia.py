"""Hierarchical multi-scale attention of NVIDIA's code: equal logits at one scale and at three."""

import pytest
import torch

from ocr_panoptic.engine import build_trained_model
from support import published_networks as published
from support.conversions import W18, convert, load, network_input, write
from support.conversions import image as image_of

pytestmark = pytest.mark.slow

CONFIG = "nvidia_cityscapes"


@pytest.fixture
def network():
    """Weights, image and logits of one scale: random, with HRNet-W18."""
    weights, x = published.Weights(), image_of(64, 128)
    with torch.no_grad():
        logits = published.nvidia_hmsa(weights, network_input(load(CONFIG, *W18), x), 18)
    return weights, x, logits


def converted(folder, tensors, *opts):
    cfg = load(CONFIG, *W18, *opts)
    cfg.TEST.OPTIMIZED = False
    cfg.MODEL.WEIGHTS = str(folder / "converted.pth")
    file = write(folder / "published.pth", tensors, "module.")
    convert(CONFIG, file, cfg.MODEL.WEIGHTS, *opts)
    return cfg, build_trained_model(cfg).network


def test_logits_are_those_of_the_published_network_and_scales(network, tmp_path, capsys):
    """The second and third size are no multiples of 32 at any scale; an odd side has no half."""
    weights, x, expected = network
    cfg, model = converted(tmp_path, weights.tensors)
    assert model.hierarchy.scales == (2.0, 1.0, 0.5)
    image = network_input(cfg, x)
    with torch.no_grad():
        for ours, theirs in zip(model._scale(image), expected, strict=True):
            assert theirs.std() > 0.05
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        # In float64: norms of random weights fit one scale, and logits of others are in hundreds.
        # What is left is the rounding of the biases that were folded.
        for name, tensor in weights.tensors.items():
            weights.tensors[name] = tensor.double() if tensor.is_floating_point() else tensor
        model.double()
        for size, scales in (
            ((96, 160), (2.0, 1.0, 0.5)),
            ((101, 131), (2.0, 1.0, 0.5)),
            ((133, 197), (1.0, 0.5)),
        ):
            image, model.hierarchy.scales = network_input(cfg, image_of(*size)).double(), scales
            blended = published.nvidia_scales(weights, image, scales, width=18)
            found, most = model.logits(image), blended.abs().max().item()
            torch.testing.assert_close(found, blended, rtol=0, atol=5e-6 * most)
            assert blended.std(dim=(2, 3)).mean() > 1
    assert "2 biases folded" in capsys.readouterr().out


def test_a_network_without_attention(network, tmp_path):
    """HRNet-OCR as it is trained before, and files that do not fit the config."""
    weights, x, expected = network
    plain = {k: v for k, v in weights.tensors.items() if not k.startswith("scale_attn")}
    off = ("MODEL.HMSA.ENABLED", "False", "TEST.SCALES", "[1.0]")
    _, model = converted(tmp_path, plain, *off)
    with torch.no_grad():
        for ours, theirs in zip(model.layers([{"image": x}]), expected):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    fault = r"scale_attention.*nothing in the file(.|\n)*HMSA.ENABLED"
    with pytest.raises(ValueError, match=fault):
        converted(tmp_path, plain)
    with pytest.raises(ValueError, match=r"scale_attn.*which the model does not have"):
        converted(tmp_path, weights.tensors, *off)
