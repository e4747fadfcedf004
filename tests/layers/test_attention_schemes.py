"""The plain baseline, self-attention and double attention, compared with their plain equations."""

import torch

from ocr_panoptic.layers import DoubleAttention, NoContext, SelfAttention
from support import equations
from support.battery import SchemeBattery


class TestNoContext(SchemeBattery):
    scheme, arguments, published = NoContext, {"channels": 8}, ({}, 0, 0.1)

    def reference(self, layer, x, m):
        return x


class TestSelfAttention(SchemeBattery):
    scheme = SelfAttention
    arguments = dict(in_channels=8, key_channels=12, out_channels=18, norm="BN")
    # The complexity table without the head's 3x3: three convolutions 512 -> 256, 256 -> 512,
    # 1024 -> 512, and three norms.
    published = ({}, 4 * 512 * 256 + 1024 * 512 + 2 * (256 + 256 + 512), 0.05)

    def reference(self, layer, x, m):
        queries = equations.conv_norm_relu(layer.phi, x).flatten(2)
        keys = equations.conv_norm_relu(layer.psi, x).flatten(2)
        weights = equations.softmax(torch.einsum("ndp,ndq->npq", queries, keys) / 12**0.5, 2)
        values = equations.linear(layer.value, x).flatten(2)
        y = torch.einsum("npq,ndq->ndp", weights, values).unflatten(2, x.shape[2:])
        y = equations.linear(layer.output, y)
        return equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))


class TestDoubleAttention(SchemeBattery):
    scheme = DoubleAttention
    arguments = dict(num_regions=5, in_channels=8, key_channels=12, out_channels=18, norm="BN")
    # The complexity table without the head's 3x3: A 512 -> 256, two convolutions 512 -> 64,
    # 256 -> 512, 1024 -> 512; the bias of the relation; norms.
    published = ({}, 512 * 256 + 2 * 512 * 64 + 256 * 512 + 1024 * 512 + 64 + 2 * 2 * 512, 0.05)

    def reference(self, layer, x, m):
        features = equations.linear(layer.delta, x).flatten(2)
        gather = equations.softmax(equations.linear(layer.region_predictor, x).flatten(2), 2)
        distribute = equations.softmax(equations.linear(layer.relation_predictor, x).flatten(2), 1)
        regions = torch.einsum("ndp,nrp->ndr", features, gather)
        y = torch.einsum("ndr,nrp->ndp", regions, distribute).unflatten(2, x.shape[2:])
        y = equations.conv_norm_relu(layer.rho, y)
        return equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))
