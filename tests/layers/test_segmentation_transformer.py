"""The segmentation transformer: what its section says, and its equivalence with OCR."""

import equations
import pytest
import torch
from test_transformer import attention, self_attention

from ocr_panoptic.layers import OCR, SegmentationTransformer

OPTIONS = [
    {},
    {"encoder_self_attention": True},
    {"decoder_self_attention": "before"},
    {"decoder_self_attention": "after"},
    {"encoder_self_attention": True, "decoder_self_attention": "after"},
]


def make_layer(**options) -> SegmentationTransformer:
    torch.manual_seed(1)
    layer = SegmentationTransformer(5, 6, 4, 8, norm="BN", dropout=0.0, **options)
    return equations.randomise(layer)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_equals_its_section(options, training):
    layer = make_layer(**options).train(training)

    def reference(x, m):
        size = x.shape[2:]
        tokens = x.flatten(2).transpose(1, 2)
        if "encoder_self_attention" in options:
            tokens = self_attention(layer.encoder_self_attention, tokens)
            x = tokens.transpose(1, 2).unflatten(2, size)
        queries = layer.category_queries[None]
        if options.get("decoder_self_attention") == "before":
            queries = self_attention(layer.queries_self_attention, queries)
        f = attention(queries.expand(len(x), -1, -1), tokens, tokens)
        if options.get("decoder_self_attention") == "after":
            f = self_attention(layer.regions_self_attention, f)
        f = f.transpose(1, 2)[..., None]
        projected = [
            equations.conv_norm_relu(projection, t).flatten(2).transpose(1, 2)
            for projection, t in ((layer.query, x), (layer.key, f), (layer.value, f))
        ]
        y = attention(*projected).transpose(1, 2).unflatten(2, size)
        y = equations.conv_norm_relu(layer.ffn, y)
        return equations.conv_norm_relu(layer.fuse, torch.cat([x, y], dim=1))

    equations.assert_equal_with_gradients(layer, reference, *equations.inputs())


def make_pair(**ocr_options) -> tuple[OCR, SegmentationTransformer, torch.nn.Conv2d]:
    """OCR, the segmentation transformer with its weights, and the linear classifier whose weights
    are the category queries."""
    torch.manual_seed(1)
    options = {"transform_convs": 1, "scale_relation": True, **ocr_options}
    ocr = equations.randomise(OCR(6, 4, 8, norm="BN", dropout=0.0, **options))
    classifier = torch.nn.Conv2d(6, 5, kernel_size=1).double()
    transformer = make_layer()
    with torch.no_grad():
        transformer.category_queries.copy_(6**0.5 * classifier.weight[:, :, 0, 0])
    for theirs, ours in (
        (transformer.query, ocr.phi[0]),
        (transformer.key, ocr.psi[0]),
        (transformer.value, ocr.delta),
        (transformer.ffn, ocr.rho),
        (transformer.fuse, ocr.g),
    ):
        theirs.load_state_dict(ours.state_dict())
    return ocr, transformer, classifier


@pytest.mark.parametrize("training", [False, True])
def test_is_ocr_with_the_classifier_as_category_queries(training):
    """Output, and gradients of the pixels, the classifier and the transforms."""
    ocr, transformer, classifier = make_pair()
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
    gradient = 6**0.5 * transformer.category_queries.grad
    torch.testing.assert_close(gradient, classifier.weight.grad[:, :, 0, 0], rtol=0, atol=1e-11)
    torch.testing.assert_close(ocr.rho.weight.grad, transformer.ffn.weight.grad)
    # The spatial softmax does not see the classifier's bias.
    assert classifier.bias.grad.abs().max() < 1e-12


def test_what_the_equivalence_needs():
    """Each condition of the docstring, left out, changes the result."""
    x, _ = equations.inputs()
    ocr, transformer, classifier = make_pair()
    ocr.eval(), transformer.eval()
    expected = transformer(x, None)
    unscaled, *_ = make_pair(scale_relation=False)
    assert not torch.allclose(unscaled.eval()(x, classifier(x)), expected)
    assert not torch.allclose(ocr(x, 6**0.5 * classifier(x)), expected)
    torch.testing.assert_close(ocr(x, classifier(x) + 7), expected)


def test_the_coarse_logits_have_no_part_in_it():
    layer = make_layer().eval()
    x, m = equations.inputs()
    assert torch.equal(layer(x, m), layer(x, -m))


def test_undecided_queries_gather_the_mean():
    layer = make_layer()
    torch.nn.init.zeros_(layer.category_queries)
    x, _ = equations.inputs()
    mean = x.mean(dim=(2, 3))[:, :, None, None].expand(2, 6, 5, 1)
    torch.testing.assert_close(layer.decode(x), mean)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_neither_pixels_nor_categories_have_an_order(options):
    """Pixels in another order give the output in that order; the queries in another order give
    the same output."""
    layer = make_layer(**options).eval()
    x, _ = equations.inputs()
    z = layer(x, None)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    permuted = layer(x.flatten(2)[:, :, order].view_as(x), None)
    torch.testing.assert_close(permuted.flatten(2), z.flatten(2)[:, :, order])
    with torch.no_grad():
        layer.category_queries.copy_(layer.category_queries.flip(0))
    torch.testing.assert_close(layer(x, None), z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_agrees_with_float32(dtype):
    """128 x 256 pixels, whose mean weight in the decoder is below float16's normal numbers."""
    torch.manual_seed(0)
    layer = SegmentationTransformer(19, 64, 32, 64, norm="BN", dropout=0.0).eval()
    x = torch.randn(1, 64, 128, 256).relu() + torch.linspace(0, 1, 64)[None, :, None, None]
    with torch.no_grad():
        expected = layer(x, None)
        exact = layer.double().decode(x.double())
        layer.float()
        with torch.autocast("cpu", dtype=dtype):
            actual = layer(x, None)
        f = layer.decode(x.to(dtype)).double()
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert (actual.float() - expected).abs().max() / expected.abs().max() < tolerance
    assert (f - exact).abs().max() / exact.abs().max() < tolerance


def test_bad_place_of_the_self_attention():
    with pytest.raises(ValueError, match="is first; it is one of none, before, after"):
        SegmentationTransformer(5, decoder_self_attention="first")
