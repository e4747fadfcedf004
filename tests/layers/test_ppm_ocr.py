"""PPM-OCR: OCR beside pyramid pooling."""

import torch
from test_ppm import pyramid

from ocr_panoptic.layers import PPMOCR
from support import equations
from support.battery import SchemeBattery


class TestPPMOCR(SchemeBattery):
    scheme = PPMOCR
    arguments = dict(in_channels=32, key_channels=12, out_channels=20, norm="BN")
    variants = ({}, {"transform_convs": 1, "scale_relation": False})
    sizes = ({"h": 7, "w": 6}, {"h": 2, "w": 4})  # also fewer pixels than cells
    pools = True
    # OCR's phi, psi, delta and rho; four 1x1 convolutions 512 -> 128; g of x, y and these; norms.
    published = (
        {},
        2 * (512 * 256 + 256 * 256)
        + 2 * 512 * 256
        + 4 * 512 * 128
        + (2 * 512 + 4 * 128) * 512
        + 2 * (4 * 256 + 256 + 512 + 4 * 128 + 512),
        0.05,
    )

    def inputs(self, **size):
        return equations.inputs(**{"c": 32, **size})

    def reference(self, layer, x, m, transform_convs=2, scale_relation=True):
        f = equations.gather(x, m)
        w = equations.relation(layer, x, f, scale_relation)
        y = equations.context(layer, w, f, x.shape[2:])
        maps = [x, y, *pyramid(layer, x, (1, 2, 3, 6))]
        return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))

    def test_bands_of_rows_are_the_whole(self, monkeypatch):
        layer = self.make().eval()
        x, m = self.inputs(h=7, w=6)
        monkeypatch.setattr("ocr_panoptic.layers.ocr.PIXELS_OF_BAND", 12)
        with torch.no_grad():
            bands = list(layer.in_bands(x, m))
            assert [band.shape[2] for band in bands] == [2, 2, 2, 1]
            torch.testing.assert_close(torch.cat(bands, dim=2), layer(x, m))
