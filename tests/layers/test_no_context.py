"""The plain baseline."""

from ocr_panoptic.layers import NoContext
from support.battery import SchemeBattery


class TestNoContext(SchemeBattery):
    scheme, arguments, published = NoContext, {"channels": 8}, ({}, 0, 0.1)

    def reference(self, layer, x, m):
        return x
