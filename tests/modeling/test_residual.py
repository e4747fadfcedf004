"""The residual form: refined logits are the coarse ones plus a correction that starts at 0."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling import build_model

from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from support.heads import FPN_SHAPES, SHAPES, make_features, make_fpn_head, make_head, make_targets
from support.segmentors import make_batch, make_cfg

HEADS = {"semantic": (make_head, SHAPES), "panoptic": (make_fpn_head, FPN_SHAPES)}


@pytest.mark.parametrize("kind", HEADS)
def test_logits_are_the_coarse_ones_plus_those_without_it(kind):
    make, shapes = HEADS[kind]
    head = make(residual=True).eval().double()
    features = {name: x.double() for name, x in make_features(shapes).items()}
    with torch.no_grad():
        for parameter in head.refined_predictor.parameters():
            parameter.normal_()
        coarse, refined = head.layers(features)
        head.residual = False
        alone = head.layers(features)[1]
    assert alone.std() > 0.1
    torch.testing.assert_close(refined, coarse + alone, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", CONTEXT_SCHEMES)
def test_every_scheme_begins_as_the_coarse_prediction(scheme):
    model = build_model(make_cfg("MODEL.CONTEXT.NAME", scheme, "MODEL.OCR.RESIDUAL", True)).eval()
    with torch.no_grad():
        coarse, refined = model.layers(make_batch(64, 96))
    assert coarse.std() > 0
    torch.testing.assert_close(refined, coarse, rtol=0, atol=0)


def test_coarser_features_of_the_coarse_prediction_are_resized():
    """Bilinearly, to the size of the refined logits, by the definition of ``align_corners``."""
    for align_corners in (False, True):
        head = make_head(residual=True, align_corners=align_corners).eval()
        features = make_features()
        features["res4"] = features["res4"][..., ::2, ::2]
        with torch.no_grad():
            coarse, refined = head.layers(features)
            mode = {"mode": "bilinear", "align_corners": align_corners}
            expected = F.interpolate(coarse, size=(8, 12), **mode)
        torch.testing.assert_close(refined, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", HEADS)
def test_refined_loss_teaches_the_coarse_branch_from_the_first_iteration(kind):
    """At the start both predictions are one, so both losses have one gradient there. Without the
    residual form the refined loss reaches the coarse classifier by the regions alone."""
    make, shapes = HEADS[kind]
    norms = {}
    for residual in (True, False):
        head = make(residual=residual, loss_weight=1.0, coarse_loss_weight=1.0).train()
        _, losses = head(make_features(shapes), make_targets())
        weight = head.coarse_predictor.weight
        gradients = [
            torch.autograd.grad(losses[name], weight, retain_graph=True)[0]
            for name in ("loss_sem_seg", "loss_sem_seg_coarse")
        ]
        if residual:
            torch.testing.assert_close(*gradients)
        norms[residual] = (gradients[0].norm() / gradients[1].norm()).item()
    assert 0 < norms[False] < 0.3 * norms[True]


@pytest.mark.parametrize("kind", HEADS)
def test_starts_of_the_coarse_classifier(kind):
    """N(0, 2 / C) and N(0, 2 / K) with a bias of 0, the latter as c2_msra_fill has it, and
    PyTorch's within 1 / sqrt(C)."""
    make, _ = HEADS[kind]
    small, middle, large = (
        make(coarse_start=start).coarse_predictor for start in ("pytorch", "he", "detectron2")
    )
    channels = small.in_channels
    assert small.weight.abs().max() <= channels**-0.5 and small.bias.any()
    for predictor, inputs in (middle, channels), (large, 5):
        assert predictor.weight.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.15)
        assert not predictor.bias.any()
