"""The segmentation transformer as in the paper, and its equivalence with OCR."""

import pytest
import torch

from ocr_panoptic.layers import OCR, JointTransformer, SegmentationTransformer
from support import equations
from support.battery import SchemeBattery


class TestSegmentationTransformer(SchemeBattery):
    scheme = SegmentationTransformer
    arguments = dict(num_classes=5, in_channels=8, key_channels=12, out_channels=18, norm="BN")
    variants = (
        {},
        {"encoder_self_attention": True},
        {"decoder_self_attention": "before"},
        {"decoder_self_attention": "after"},
        {"encoder_self_attention": True, "decoder_self_attention": "after"},
    )
    # 19 queries; three projections, feed-forward network, fusion; norms.
    published = (
        {"num_classes": 19},
        19 * 512 + 4 * 512 * 256 + 1024 * 512 + 2 * (3 * 256 + 2 * 512),
        0.05,
    )

    def reference(self, layer, x, m, encoder_self_attention=False, decoder_self_attention="none"):
        size = x.shape[2:]
        tokens = x.flatten(2).transpose(1, 2)
        if encoder_self_attention:
            tokens = equations.self_attention(layer.encoder_self_attention, tokens)
            x = tokens.transpose(1, 2).unflatten(2, size)
        queries = layer.category_queries[None]
        if decoder_self_attention == "before":
            queries = equations.self_attention(layer.queries_self_attention, queries)
        f = equations.attention(queries.expand(len(x), -1, -1), tokens, tokens)
        if decoder_self_attention == "after":
            f = equations.self_attention(layer.regions_self_attention, f)
        f = f.transpose(1, 2)[..., None]
        projected = [
            equations.conv_norm_relu(projection, t).flatten(2).transpose(1, 2)
            for projection, t in ((layer.query, x), (layer.key, f), (layer.value, f))
        ]
        y = equations.attention(*projected).transpose(1, 2).unflatten(2, size)
        y = equations.conv_norm_relu(layer.ffn, y)
        return equations.conv_norm_relu(layer.fuse, torch.cat([x, y], dim=1))


@pytest.mark.parametrize("training", [False, True])
def test_equals_ocr_with_the_classifier_as_category_queries(training):
    torch.manual_seed(1)
    options = {"transform_convs": 1, "scale_relation": True}
    ocr = equations.randomise(OCR(8, 12, 18, norm="BN", dropout=0.0, **options))
    classifier = torch.nn.Conv2d(8, 5, kernel_size=1).double()
    transformer = TestSegmentationTransformer().make()
    with torch.no_grad():
        transformer.category_queries.copy_(8**0.5 * classifier.weight[:, :, 0, 0])
    for theirs, ours in (
        (transformer.query, ocr.phi[0]),
        (transformer.key, ocr.psi[0]),
        (transformer.value, ocr.delta),
        (transformer.ffn, ocr.rho),
        (transformer.fuse, ocr.g),
    ):
        theirs.load_state_dict(ours.state_dict())
    ocr.train(training), transformer.train(training)
    x, _ = equations.inputs()
    results = []
    for forward in (lambda x: ocr(x, classifier(x)), lambda x: transformer(x, None)):
        pixels = x.clone().requires_grad_()
        z = forward(pixels)
        z.cos().sum().backward()
        results.append((z, pixels.grad))
    torch.testing.assert_close(*results, rtol=0, atol=1e-11)
    assert results[0][0].std() > 0.1
    # d / d classifier = sqrt(C) d / d queries
    gradient = 8**0.5 * transformer.category_queries.grad
    torch.testing.assert_close(gradient, classifier.weight.grad[:, :, 0, 0], rtol=0, atol=1e-11)
    torch.testing.assert_close(ocr.rho.weight.grad, transformer.ffn.weight.grad)
    # The spatial softmax cancels the classifier's bias.
    assert classifier.bias.grad.abs().max() < 1e-12


class TestJointTransformer(SchemeBattery):
    scheme = JointTransformer
    arguments = dict(num_classes=5, channels=8, key_channels=6, num_blocks=2)
    variants = ({"num_blocks": 1}, {"num_blocks": 3})
    # 19 queries; two blocks of four projections and a hidden layer of 4 x 512; five layer norms.
    published = (
        {"num_classes": 19},
        19 * 512 + 2 * (4 * 512 * 256 + 2 * 4 * 512 * 512 + 5 * 512) + 5 * 2 * 512,
        0.05,
    )

    def reference(self, layer, x, m, num_blocks):
        assert len(layer.blocks) == num_blocks
        queries = layer.category_queries[None].expand(len(x), -1, -1)
        tokens = torch.cat([queries, x.flatten(2).transpose(1, 2)], dim=1)
        for module in layer.blocks:
            tokens = equations.transformer_block(module, tokens)
        z = equations.layer_norm(layer.norm, tokens[:, 5:])
        return z.transpose(1, 2).unflatten(2, x.shape[2:])
