"""The OCR layer, compared with the paper's equations, and consequences worked out by hand."""

import math

import pytest
import torch
from detectron2.layers import Conv2d

from ocr_panoptic.layers import OCR, pixel_region_relation
from support import equations
from support.battery import SchemeBattery

PIXEL = {"n": 1, "k": 3, "h": 1, "w": 1}


class TestOCR(SchemeBattery):
    scheme = OCR
    arguments = dict(in_channels=8, key_channels=12, out_channels=18, norm="BN")
    variants = ({}, {"transform_convs": 1}, {"scale_relation": False})
    sizes = ({}, {"n": 1, "h": 7, "w": 1})
    # The published layer has two convolutions in phi and psi, and norms instead of biases.
    published = (
        {},
        2 * (512 + 256) * 256 + 2 * 512 * 256 + 1024 * 512 + 2 * (5 * 256 + 2 * 512),
        0.05,
    )

    def reference(self, layer, x, m, transform_convs=2, scale_relation=True):
        assert len(layer.phi) == len(layer.psi) == transform_convs
        f = equations.gather(x, m)
        return equations.augment(layer, x, equations.relation(layer, x, f, scale_relation), f)

    @pytest.mark.parametrize(
        "shape, training", [(PIXEL, False), ({"k": 1}, False), ({"k": 1}, True)], ids=str
    )
    def test_one_pixel_and_one_region(self, options, shape, training):
        layer, (x, m) = self.make(**options).train(training), self.inputs(**shape)
        expected = self.reference(layer, x, m, **options)
        torch.testing.assert_close(layer(x, m), expected, rtol=0, atol=1e-11)

    @pytest.mark.parametrize("norm", ["", "BN", "FrozenBN", "GN", "LN", "SyncBN"])
    @pytest.mark.parametrize("training", [False, True])
    def test_every_norm_equals_the_explicit_composition(self, monkeypatch, norm, training):
        """The reference is the equations with Detectron2's own Conv2d.forward."""
        monkeypatch.setattr(equations, "conv_norm_relu", lambda conv, t: Conv2d.forward(conv, t))
        torch.manual_seed(0)
        layer = OCR(32, 32, 32, norm=norm, dropout=0.0).double().train(training)
        x, m = equations.inputs(c=32)
        expected = self.reference(layer, x, m)
        torch.testing.assert_close(layer(x, m), expected, rtol=0, atol=1e-11)
        assert expected.std() > 0.01


def test_relation_hand_worked():
    """One pixel with phi(x) = (1, 2), and psi(f) = (3, 0) and (0, 1), give kappa = 3 and 2."""
    queries = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
    keys = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).view(1, 2, 2, 1)
    for scale, expected in ((1.0, [0.7310586, 0.2689414]), (0.5, [0.6224593, 0.3775407])):
        w = pixel_region_relation(queries, keys, scale)
        assert w[0, :, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_unscaled_relation_in_half_precision():
    """256 products of 30 * 30 are 230,400; float16 ends at 65,504."""
    queries = torch.full((1, 256, 2, 2), 30.0, dtype=torch.float16)
    keys = torch.full((1, 256, 3, 1), 30.0, dtype=torch.float16)
    keys[:, 0, 1], keys[:, 0, 2] = 29.96875, 0.0  # products lower by 0.9375 and 900
    w = pixel_region_relation(queries, keys, 1.0)
    expected = torch.tensor([1.0, math.exp(-0.9375), 0.0]) / (1 + math.exp(-0.9375))
    assert w.dtype == torch.float16
    torch.testing.assert_close(w[0, :, 0].float(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("norm", ["BN", "GN", ""])
def test_bands_and_layouts_do_not_change_the_result(monkeypatch, norm, memory_format):
    torch.manual_seed(0)
    layer = equations.randomise(OCR(32, 32, 64, norm=norm)).double().eval()
    x, m = torch.randn(2, 32, 7, 5).double(), torch.randn(2, 6, 7, 5).double()
    (expected,) = layer.in_bands(x, m)  # with gradients: all pixels at once
    torch.testing.assert_close(expected, layer(x, m), rtol=0, atol=0)
    monkeypatch.setattr("ocr_panoptic.layers.ocr.PIXELS_OF_BAND", 10)
    with torch.no_grad():
        maps = (t.contiguous(memory_format=memory_format) for t in (x, m))
        bands = list(layer.in_bands(*maps))
        found = torch.cat(bands, dim=2)
    assert len(bands) == (1 if norm == "GN" else 4)  # a group norm sees all pixels
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert found.is_contiguous(memory_format=memory_format)


def test_a_subclass_with_its_own_forward_is_not_split(monkeypatch):
    class Doubled(OCR):
        def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x, m)

    monkeypatch.setattr("ocr_panoptic.layers.ocr.PIXELS_OF_BAND", 10)
    layer = Doubled(32, 32, 64, norm="BN").eval()
    x, m = torch.randn(1, 32, 7, 5), torch.randn(1, 6, 7, 5)
    with torch.no_grad():
        (found,) = layer.in_bands(x, m)
        assert torch.equal(found, layer(x, m))
