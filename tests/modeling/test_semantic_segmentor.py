"""The semantic-only architecture: backbones, head, losses, labels."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.layers import one_hot_labels
from ocr_panoptic.modeling import OCRSemanticSegmentor
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from support.heads import make_features, make_head, make_targets
from support.segmentors import make_batch, make_cfg, make_resnet_cfg


def conv(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A conv-norm-ReLU by functional calls, in evaluation mode."""
    norm = module.norm
    y = F.conv2d(x, module.weight, padding=module.weight.shape[-1] // 2)
    y = F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    return F.relu(y)


@pytest.mark.parametrize("scheme", ["OCR", "none", "GT-OCR"])
def test_head_equals_its_description(scheme):
    """Coarse: 3x3 conv -> norm -> ReLU -> 1x1 of stage 3. Final: 3x3 of stage 4, scheme, 1x1."""
    head, features = make_head(scheme=scheme).eval(), make_features()
    targets = make_targets()
    with torch.no_grad():
        coarse, refined = head.layers(features, targets)
        expected = conv(head.coarse[0], features["res4"])
        expected = F.conv2d(expected, head.coarse_predictor.weight, head.coarse_predictor.bias)
        torch.testing.assert_close(coarse, expected, rtol=0, atol=1e-5)
        x = conv(head.bottleneck, features["res5"])
        m = one_hot_labels(targets, 5, 255, (8, 12)) if scheme == "GT-OCR" else coarse
        z = x if scheme == "none" else head.context(x, m)
        expected = F.conv2d(z, head.refined_predictor.weight, head.refined_predictor.bias)
        torch.testing.assert_close(refined, expected, rtol=0, atol=1e-5)
        logits, losses = head(features, targets)
    assert losses == {} and logits.shape == (2, 5, 64, 96)


def test_linear_coarse_head_of_the_paper():
    head, features = make_head(coarse_kernel=0).eval(), make_features()
    expected = F.conv2d(features["res4"], head.coarse_predictor.weight, head.coarse_predictor.bias)
    torch.testing.assert_close(head.layers(features)[0], expected, rtol=0, atol=1e-5)


def test_regions_without_supervision():
    """A second branch of the same form predicts the regions; only the final loss reaches it. The
    coarse loss is an auxiliary one, and reaches the first branch alone."""
    head, features = make_head(region_supervision=False), make_features()
    assert {k: v.shape for k, v in head.regions.state_dict().items()} == {
        k.replace("coarse.", "0.").replace("coarse_predictor", "1"): v.shape
        for k, v in head.state_dict().items()
        if k.startswith("coarse")
    }
    with torch.no_grad():
        coarse, refined = head.eval().layers(features)
        regions = conv(head.regions[0][0], features["res4"])
        regions = F.conv2d(regions, head.regions[1].weight, head.regions[1].bias)
        x = conv(head.bottleneck, features["res5"])
        torch.testing.assert_close(refined, head.refined_predictor(head.context(x, regions)))
        expected = head.coarse_predictor(conv(head.coarse[0], features["res4"]))
        torch.testing.assert_close(coarse, expected)
    targets = make_targets()
    _, losses = head.train()(features, targets)
    for name, reached, spared in (
        ("loss_sem_seg", head.regions, head.coarse),
        ("loss_sem_seg_coarse", head.coarse, head.regions),
    ):
        head.zero_grad()
        losses[name].backward()
        assert all(p.grad.abs().sum() > 0 for p in reached.parameters())
        assert all(p.grad is None for p in spared.parameters())


@pytest.mark.parametrize("scheme", ["none", "GT-OCR", "Segmentation-Transformer"])
def test_no_region_supervision_without_regions(scheme):
    with pytest.raises(ValueError, match="REGION_SUPERVISION is False, but .* no predicted region"):
        build_model(make_cfg("MODEL.CONTEXT.NAME", scheme, "MODEL.OCR.REGION_SUPERVISION", False))


def test_losses_and_their_weights():
    head, features = make_head(loss_weight=1.0, coarse_loss_weight=0.4).train(), make_features()
    targets = make_targets()
    targets[:, :9] = 255
    _, losses = head(features, targets)
    for name, logits, weight in zip(
        ("loss_sem_seg_coarse", "loss_sem_seg"), head.layers(features), (0.4, 1.0)
    ):
        full = F.interpolate(logits, size=(64, 96), mode="bilinear", align_corners=False)
        expected = weight * F.cross_entropy(full, targets, ignore_index=255)
        assert losses[name].item() == pytest.approx(expected.item(), rel=1e-5)
    _, losses = head(features, torch.full_like(targets, 255))
    sum(losses.values()).backward()
    assert all(loss.item() == 0 for loss in losses.values())
    assert all(p.grad is None or p.grad.eq(0).all() for p in head.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, backbone",
    [*((name, "resnet18") for name in CONTEXT_SCHEMES), ("OCR", "hrnet_w18"), ("PPM", "hrnet_w18")],
)
def test_trains_and_labels_images_of_any_size(scheme, backbone):
    torch.manual_seed(0)
    model = build_model(make_cfg("MODEL.CONTEXT.NAME", scheme, backbone=backbone))
    assert type(model) is OCRSemanticSegmentor
    batch = make_batch()
    losses = model.train()(batch)
    assert set(losses) == {"loss_sem_seg", "loss_sem_seg_coarse"}
    sum(losses.values()).backward()
    unused = [k for k, p in model.named_parameters() if p.grad is None]
    assert unused == []
    with torch.no_grad():
        _, refined = model.eval().layers(batch[:1])
        # An untrained classifier may prefer one class everywhere: none is preferred on average.
        model.sem_seg_head.refined_predictor.bias -= refined.mean(dim=(0, 2, 3))
        outputs = model(batch)
        _, refined = model.layers(batch[:1])
    stride = model.sem_seg_head.common_stride
    full = F.interpolate(refined, scale_factor=stride, mode="bilinear", align_corners=False)
    expected = full[0, :, :61, :83].argmax(0)
    assert len(expected.unique()) > 1
    assert (outputs[0]["labels"] != expected).float().mean() < 0.002  # ties of rounding
    assert outputs[0]["labels"].shape == (61, 83)


@pytest.mark.slow
def test_gt_ocr_without_truth_and_with_scales():
    model = build_model(make_cfg("MODEL.CONTEXT.NAME", "GT-OCR")).eval()
    batch = make_batch()
    del batch[0]["sem_seg"]
    with pytest.raises(ValueError, match="GroundTruthOCR\\) needs the ground truth"):
        model(batch[:1])
    with pytest.raises(ValueError, match="TEST.FLIP False"):
        build_model(make_cfg("MODEL.CONTEXT.NAME", "GT-OCR", "TEST.FLIP", True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "key, value, message",
    [
        ("MODEL.CONTEXT.NAME", "ORC", "the schemes are none, OCR, DA-OCR"),
        ("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "focal", "LOSS_TYPE is focal"),
        ("MODEL.SEM_SEG_HEAD.IN_FEATURES", "['res5']", "the backbone has act1, .*: res5 is not"),
        ("MODEL.TIMM.NAME", "resnet1", "MODEL.TIMM.NAME resnet1"),
        ("MODEL.TIMM.NORM", "GN", "MODEL.TIMM.NORM is GN"),
        ("MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS", "[1.0, 2.0]", "has 2 weights for 5 classes"),
        ("MODEL.SEM_SEG_HEAD.COARSE_KERNEL", "2", "COARSE_KERNEL is 2; it is odd"),
        ("MODEL.PAD_TO_MULTIPLE", "-1", "PAD_TO_MULTIPLE is -1"),
        ("MODEL.SEM_SEG_HEAD.NAME", "SemSegFPNHead", "NAME is SemSegFPNHead; .* takes ContextSem"),
    ],
)
def test_bad_values(key, value, message):
    with pytest.raises(ValueError, match=message):
        build_model(make_cfg(key, value))


@pytest.mark.slow
def test_odd_sizes_are_padded_to_the_stride():
    """61 x 83 pixels have 8 x 11 features of stride 8, which cover 64 x 88 pixels."""
    torch.manual_seed(0)
    model = build_model(make_resnet_cfg(50)).eval()
    assert model.backbone.size_divisibility == 0  # Detectron2 would not pad
    batch = make_batch()[:1]
    with torch.no_grad():
        labels = model(batch)[0]["labels"]
        image = (batch[0]["image"] - model.pixel_mean) / model.pixel_std
        features = model.backbone(F.pad(image, (0, 5, 0, 3))[None])
        logits = model.sem_seg_head.layers(features)[1]
        full = F.interpolate(logits, size=(64, 88), mode="bilinear", align_corners=False)
    assert torch.equal(labels, full[0, :, :61, :83].argmax(0))


def test_hrnet_takes_images_of_any_size():
    model = build_model(make_cfg("MODEL.PAD_TO_MULTIPLE", 1, backbone="hrnet_w18_small")).eval()
    with torch.no_grad():
        coarse, refined = model.layers(make_batch(65, 97)[:1])
    assert model.divisor == 1 and coarse.shape == refined.shape == (1, 5, 17, 25)


@pytest.mark.parametrize("align_corners", [False, True])
def test_corners_in_the_head(align_corners):
    """Features, the finest first, regions, full-size logits and losses: all resized in one way."""
    shapes = {f"s{i}": ShapeSpec(channels=8, stride=4 * i) for i in (1, 2)}
    names = {"in_features": ["s2", "s1"], "coarse_in_features": ["s2"], "coarse_loss_weight": 0.4}
    head = make_head(shapes, **names, align_corners=align_corners).eval()
    features = make_features(shapes)
    targets = make_targets()

    def up(x, size):
        return F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners)

    with torch.no_grad():
        coarse, refined = head.layers(features)
        x = torch.cat([features["s1"], up(features["s2"], (16, 24))], 1)
        expected = head.refined_predictor(head.context(head.bottleneck(x), up(coarse, (16, 24))))
        torch.testing.assert_close(refined, expected, rtol=0, atol=1e-6)
        logits, _ = head(features)
        torch.testing.assert_close(logits, up(refined, (64, 96)), rtol=0, atol=0)
        losses = head.losses((coarse, refined), targets)
    for name, weight, x in (("", 1.0, refined), ("_coarse", 0.4, coarse)):
        expected = weight * F.cross_entropy(up(x, (64, 96)), targets)
        torch.testing.assert_close(losses[f"loss_sem_seg{name}"], expected)


def count(cfg: CfgNode) -> int:
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 19
    cfg.MODEL.OCR.CHANNELS, cfg.MODEL.OCR.KEY_CHANNELS = 512, 256
    model = build_model(cfg)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone, channels, published", [("hrnet_w48", 720, 70372678), ("hrnet_w18", 270, 12080818)]
)
def test_parameters_of_hrnet_ocr(backbone, channels, published):
    """The published HRNet-OCR has biases in front of two norms (the 3x3 convolution and the
    coarse head's), which the norms cancel and which are left out here; and this HRNet, like the
    published one, has no classification head."""
    cfg = make_cfg(backbone=backbone)
    cfg.MODEL.SEM_SEG_HEAD.COARSE_KERNEL = 1
    cfg.MODEL.SEM_SEG_HEAD.COARSE_CHANNELS = channels
    assert count(cfg) == published - 512 - channels


@pytest.mark.slow
def test_parameters_of_resnet_101_ocr():
    """torchvision's ResNet-101 without classifier has 42,500,160 parameters; the deep stem
    replaces its 7x7 convolution (64 channels) by three 3x3 (64, 64, 128) and widens the input of
    the first block's two 1x1 convolutions. The head: hand-worked from the layers."""
    resnet_101 = 42500160 - (3 * 64 * 49 + 2 * 64)
    stem = 9 * (3 * 64 + 64 * 64 + 64 * 128) + 2 * (64 + 64 + 128)
    widened = 64 * 64 + 64 * 256
    coarse = 9 * 1024 * 512 + 2 * 512 + 512 * 19 + 19
    bottleneck = 9 * 2048 * 512 + 2 * 512
    ocr = 2 * (512 + 256) * 256 + 2 * 512 * 256 + 1024 * 512 + 2 * (5 * 256 + 2 * 512)
    predictor = 512 * 19 + 19
    head = coarse + bottleneck + ocr + predictor
    cfg = make_resnet_cfg(101)
    cfg.MODEL.SEM_SEG_HEAD.COARSE_CHANNELS = 512
    assert count(cfg) == resnet_101 + stem + widened + head


@pytest.mark.slow
@pytest.mark.parametrize("features", [["stage1"], ["stage2", "stage4"], None])
def test_hrnet_of_some_features_trains_in_several_processes(features):
    """DistributedDataParallel stops in the second iteration where a gradient did not come."""
    cfg = make_cfg(backbone="hrnet_w18_small")
    head = cfg.MODEL.SEM_SEG_HEAD
    if features is not None:
        head.IN_FEATURES = head.COARSE_IN_FEATURES = features
    model = build_model(cfg).train()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(model)
        for _ in range(2):
            model.zero_grad()
            sum(parallel(make_batch()).values()).backward()
    finally:
        del parallel
        dist.destroy_process_group()
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    without = {n for n, p in model.named_parameters() if p.grad is None}
    assert frozen == without
    assert len(frozen) == {"stage1": 39, "stage2": 21, None: 0}[features and features[0]]


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["cross_entropy", "ohem"])
def test_autocast(loss_type):
    """Losses in bfloat16 are near those in float32, and reach every parameter."""
    losses = {}
    for enabled in (False, True):
        torch.manual_seed(0)
        model = build_model(make_cfg("MODEL.SEM_SEG_HEAD.LOSS_TYPE", loss_type)).train()
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses[enabled] = model(make_batch())
        assert all(loss.dtype == torch.float32 for loss in losses[enabled].values())
        sum(losses[enabled].values()).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
    for name, loss in losses[False].items():
        assert losses[True][name].item() == pytest.approx(loss.item(), rel=0.03)
