"""The head inside Detectron2's own PanopticFPN."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling import build_model
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from detectron2.utils.events import EventStorage

from ocr_panoptic.layers import resize
from ocr_panoptic.modeling import OCRSemSegFPNHead, refined_head
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES, NoContext
from support.heads import FPN_SHAPES, make_features, make_fpn_head, make_plain_head, make_targets


def plain_head(head: OCRSemSegFPNHead) -> SemSegFPNHead:
    """Detectron2's head with the weights of the coarse branch."""
    plain = make_plain_head()
    state = head.state_dict()
    plain.load_state_dict({k: state[k] for k in plain.state_dict()})
    return plain


def test_coarse_branch_is_detectron2s_head():
    head, features = make_fpn_head().eval(), make_features(FPN_SHAPES)
    with torch.no_grad():
        coarse, refined = head.layers(features)
        expected = plain_head(head).eval().layers(features)
    torch.testing.assert_close(coarse, expected, rtol=0, atol=1e-6)
    assert coarse.shape == refined.shape == (2, 5, 16, 24)
    assert not torch.allclose(coarse, refined)


def test_coarse_logits_are_the_soft_object_regions():
    """The OCR layer gets the sum of the branches through the 3x3 convolution, and the coarse
    logits of that very sum."""
    head, features = make_fpn_head().eval(), make_features(FPN_SHAPES)
    with torch.no_grad():
        branches = [getattr(head, name)(features[name]) for name in FPN_SHAPES]
        x = torch.stack(branches).sum(0)
        z = head.context(head.bottleneck(x), head.predictor(x))
        expected = F.conv2d(z, head.refined_predictor.weight, head.refined_predictor.bias)
        torch.testing.assert_close(head.layers(features)[1], expected, rtol=0, atol=1e-5)


def test_inference_returns_refined_logits_and_upsamples_nothing_else(monkeypatch):
    head, features = make_fpn_head().eval(), make_features(FPN_SHAPES)
    with torch.no_grad():
        _, refined = head.layers(features)
        expected = F.interpolate(refined, scale_factor=4, mode="bilinear", align_corners=False)
        sizes = []

        def record(x, size, *_):
            sizes.append(tuple(size))
            return resize(x, size)

        monkeypatch.setattr(refined_head, "resize", record)
        logits, losses = head(features)
    assert losses == {} and sizes.count((64, 96)) == 1
    torch.testing.assert_close(logits, expected)
    assert logits.shape == (2, 5, 64, 96)


def test_losses_are_two_cross_entropies_with_their_own_weights():
    head = make_fpn_head(loss_weight=0.3, coarse_loss_weight=0.7).train()
    features = make_features(FPN_SHAPES)
    targets = make_targets()
    targets[:, :7] = 255
    result, losses = head(features, targets)
    assert result is None and set(losses) == {"loss_sem_seg", "loss_sem_seg_coarse"}
    # Detectron2's head has the same loss for its one prediction.
    plain = plain_head(head)
    coarse, refined = head.layers(features)
    for name, logits, weight in (
        ("loss_sem_seg_coarse", coarse, 0.7),
        ("loss_sem_seg", refined, 0.3),
    ):
        expected = weight * plain.losses(logits, targets)["loss_sem_seg"]
        assert losses[name].item() == pytest.approx(expected.item(), rel=1e-5)


def test_gradients_reach_every_parameter_and_the_features():
    head, features = make_fpn_head().train(), make_features(FPN_SHAPES)
    features = {k: v.requires_grad_() for k, v in features.items()}
    _, losses = head(features, torch.arange(5).repeat(2, 64, 20)[:, :, :96])
    sum(losses.values()).backward()
    for name, p in head.named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name
    assert all(f.grad.abs().sum() > 0 for f in features.values())


def test_regions_without_supervision():
    """A second classifier of the same features predicts the regions; only the refined loss
    reaches it, and only the coarse loss the first."""
    head, features = make_fpn_head(region_supervision=False), make_features(FPN_SHAPES)
    with torch.no_grad():
        coarse, refined = head.eval().layers(features)
        x = sum(getattr(head, name)(features[name]) for name in FPN_SHAPES)
        regions = F.conv2d(x, head.regions.weight, head.regions.bias)
        expected = head.refined_predictor(head.context(head.bottleneck(x), regions))
        torch.testing.assert_close(refined, expected)
        torch.testing.assert_close(coarse, plain_head(head).eval().layers(features))
    _, losses = head.train()(features, make_targets())
    for name, reached, spared in (
        ("loss_sem_seg", head.regions, head.predictor),
        ("loss_sem_seg_coarse", head.predictor, head.regions),
    ):
        head.zero_grad()
        losses[name].backward(retain_graph=True)
        assert reached.weight.grad.abs().sum() > 0 and spared.weight.grad is None
    with pytest.raises(ValueError, match="NoContext\\) uses no predicted regions"):
        make_fpn_head(region_supervision=False, context=NoContext(32))


@pytest.mark.slow
def test_the_scheme_follows_the_config(small_cfg, batch):
    """Refined logits without context are a classifier of the 3x3 convolution's output."""
    model = build_model(small_cfg("ocr", "MODEL.CONTEXT.NAME", "none", "MODEL.OCR.DROPOUT", 0.0))
    head = model.eval().sem_seg_head
    features = model.backbone(model.preprocess_image(batch(1)).tensor)
    with torch.no_grad():
        x = sum(getattr(head, name)(features[name]) for name in FPN_SHAPES)
        expected = head.refined_predictor(head.bottleneck(x))
        torch.testing.assert_close(head.layers(features)[1], expected)
    with pytest.raises(ValueError, match="GroundTruthOCR\\) sees the ground truth"):
        build_model(small_cfg("ocr", "MODEL.CONTEXT.NAME", "GT-OCR"))


def test_pixels_that_pad_a_batch_have_no_label(small_cfg, batch, monkeypatch):
    """PanopticFPN pads the labels of the smaller image by the head's ignored label, not a class."""
    model = build_model(small_cfg("ocr")).train()
    head, seen = model.sem_seg_head, []
    losses = head.losses
    monkeypatch.setattr(head, "losses", lambda *given: seen.append(given[1]) or losses(*given))
    records = [*batch(1, 64, 96), *batch(1, 64, 64)]
    with EventStorage():
        model(records)
    (targets,) = seen
    for labels, record in zip(targets, records, strict=True):
        width = record["sem_seg"].shape[1]
        assert torch.equal(labels[:64, :width], record["sem_seg"])
        assert (labels[:, width:] == 255).all() and (labels[64:] == 255).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, size",
    [("OCR", (200, 249)), *((name, (64, 96)) for name in CONTEXT_SCHEMES if name != "GT-OCR")],
)
def test_panoptic_fpn_trains_and_infers(small_cfg, batch, scheme, size):
    torch.manual_seed(0)
    model = build_model(small_cfg("ocr", "MODEL.CONTEXT.NAME", scheme))
    assert type(model) is PanopticFPN and isinstance(model.sem_seg_head, OCRSemSegFPNHead)
    records = batch(2, *size)
    with EventStorage():
        losses = model.train()(records)
        sum(losses.values()).backward()
    assert {"loss_sem_seg", "loss_sem_seg_coarse", "loss_mask", "loss_box_reg"} <= set(losses)
    assert all(loss.isfinite() for loss in losses.values())
    parts = [n for n, _ in model.sem_seg_head.named_parameters()]
    assert all(model.sem_seg_head.get_parameter(n).grad is not None for n in parts)
    with torch.no_grad():
        model.sem_seg_head.refined_predictor.bias[0] -= 10  # class 0 is "things": ask for stuff
        output = model.eval()(records[:1])[0]
    # The refined prediction of this scheme is what the panoptic map's stuff comes from.
    semantic = output["sem_seg"].argmax(0)
    panoptic, segments = output["panoptic_seg"]
    assert output["sem_seg"].shape == (4, *size) and panoptic.shape == size
    assert any(not s["isthing"] for s in segments)
    for s in segments:
        if not s["isthing"]:
            assert (semantic[panoptic == s["id"]] == s["category_id"]).all()


@pytest.mark.slow
def test_state_dict_of_detectron2s_panoptic_fpn_loads(small_cfg):
    plain, ours = build_model(small_cfg("plain")), build_model(small_cfg())
    incompatible = ours.load_state_dict(plain.state_dict(), strict=False)
    assert incompatible.unexpected_keys == []
    new = ("sem_seg_head.bottleneck", "sem_seg_head.context.", "sem_seg_head.refined_predictor")
    assert incompatible.missing_keys and all(k.startswith(new) for k in incompatible.missing_keys)
