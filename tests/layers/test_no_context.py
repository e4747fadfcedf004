"""The plain baseline."""

from battery import SchemeBattery

from ocr_panoptic.layers import NoContext


class TestNoContext(SchemeBattery):
    scheme, arguments, published = NoContext, {"channels": 8}, ({}, 0, 0.1)

    def reference(self, layer, x, m):
        return x
