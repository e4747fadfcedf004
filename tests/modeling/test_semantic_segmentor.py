"""The semantic-only architecture: backbones, head, losses, labels."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_backbone, build_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.layers import one_hot_labels
from ocr_panoptic.modeling import ContextSemSegHead, OCRSemanticSegmentor, TimmBackbone
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES, build_context
from ocr_panoptic.modeling.losses import cross_entropy, hard_cross_entropy
from support.heads import make_features, make_head
from support.segmentors import make_batch, make_cfg, make_resnet_cfg, take_criterion


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
    targets = torch.randint(0, 5, (2, 64, 96), generator=torch.Generator().manual_seed(1))
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
    targets = torch.randint(0, 5, (2, 64, 96), generator=torch.Generator().manual_seed(1))
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
    targets = torch.randint(0, 5, (2, 64, 96), generator=torch.Generator().manual_seed(1))
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


def logits_of(probabilities: list[float]) -> torch.Tensor:
    """Two classes; the first is the truth, with these probabilities, in one row of pixels."""
    p = torch.tensor(probabilities)
    return torch.stack([p.log(), (1 - p).log()])[None, :, None, :].requires_grad_()


@pytest.mark.parametrize(
    "threshold, min_kept, kept",
    [
        (0.5, 1, [0.1, 0.3]),  # below the threshold
        (0.5, 3, [0.1, 0.3, 0.6]),  # the three lowest, though the third is above it
        (0.05, 2, [0.1, 0.3]),
        (0.95, 1, [0.1, 0.3, 0.6, 0.9]),
        (0.5, 9, [0.1, 0.3, 0.6, 0.9]),  # fewer pixels than are to be kept
    ],
)
def test_hard_examples_hand_worked(threshold, min_kept, kept):
    """Probabilities of the truth 0.9, 0.1, 0.6, 0.3, and one ignored pixel of 0.01."""
    logits = logits_of([0.9, 0.1, 0.6, 0.3, 0.01])
    targets = torch.tensor([[[0, 0, 0, 0, 255]]])
    loss = hard_cross_entropy(logits, targets, 255, threshold, min_kept)
    expected = -sum(math.log(p) for p in kept) / len(kept)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert (logits.grad[0, 0, 0] != 0).sum() == len(kept)


def test_hard_examples_of_ignored_pixels_and_of_all():
    logits = logits_of([0.2, 0.7, 0.4])
    ignored = hard_cross_entropy(logits, torch.full((1, 1, 3), 255), 255, 0.9, 10)
    ignored.backward()
    assert ignored.item() == 0 and logits.grad.eq(0).all()
    targets = torch.zeros(1, 1, 3, dtype=torch.long)
    every = hard_cross_entropy(logits, targets, 255, 0.9, 10)
    assert every.item() == pytest.approx(cross_entropy(logits, targets, 255).item())


def test_class_weights():
    """Cross-entropy: the weighted mean. Hard examples: weights multiply what is kept, and have no
    part in the choice."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator)
    targets = torch.randint(0, 3, (2, 4, 5), generator=generator)
    targets[0, 0] = 255
    weights = torch.tensor([0.5, 1.0, 4.0])
    expected = F.cross_entropy(logits, targets, weights, ignore_index=255)
    torch.testing.assert_close(cross_entropy(logits, targets, 255, weights), expected)
    # Truth 0 with probability 0.1 and truth 1 with probability 0.4 are kept, of 3.
    hard = hard_cross_entropy(
        logits_of([0.1, 0.6, 0.7]), torch.tensor([[[0, 1, 0]]]), 255, 0.5, 1, weights
    )
    expected = -(0.5 * math.log(0.1) + 1.0 * math.log(0.4)) / 2
    assert hard.item() == pytest.approx(expected, rel=1e-5)


def test_weights_and_hard_examples_reach_the_right_losses():
    """Weights concern both predictions, hard examples the final one."""
    targets = torch.randint(0, 5, (2, 64, 96), generator=torch.Generator().manual_seed(1))
    losses = {}
    for name, arguments in {
        "plain": {},
        "weights": {"class_weights": (1, 1, 1, 1, 3)},
        "ohem": {"loss_type": "ohem", "ohem_threshold": 0.1, "ohem_min_kept": 50},
    }.items():
        _, losses[name] = make_head(**arguments).train()(make_features(), targets)
    assert losses["weights"]["loss_sem_seg"] != losses["plain"]["loss_sem_seg"]
    assert losses["weights"]["loss_sem_seg_coarse"] != losses["plain"]["loss_sem_seg_coarse"]
    assert losses["ohem"]["loss_sem_seg"] > losses["plain"]["loss_sem_seg"]
    assert losses["ohem"]["loss_sem_seg_coarse"] == losses["plain"]["loss_sem_seg_coarse"]


def test_threshold_of_hard_examples_is_a_probability():
    with pytest.raises(ValueError, match=r"OHEM_THRESHOLD is 90.*\(0, 1\]"):
        hard_cross_entropy(logits_of([0.5]), torch.tensor([[[0]]]), 255, 90, 1)


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


@pytest.mark.parametrize("align_corners, twice", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("size, half", [((8, 12), (4, 6)), ((7, 11), (4, 6))])
def test_hrnet_adds_its_branches_by_bilinear_upsampling(align_corners, twice, size, half):
    """Two branches: the fine one gets the coarse one's map enlarged, the coarse one the fine one's
    by a convolution of stride 2. Odd sides have no exact half."""
    torch.manual_seed(0)
    options = {"align_corners": align_corners, "enlarge_twice": twice}
    backbone = TimmBackbone("hrnet_w18_small_v2", norm="BN", **options)
    module = backbone.body.stage2[0].eval()
    fine, coarse = torch.randn(1, 18, *size), torch.randn(1, 36, *half)
    fine_out, coarse_out = module([fine, coarse])
    a, b = module.branches[0](fine), module.branches[1](coarse)
    up, down = module.fuse_layers[0][1](b), module.fuse_layers[1][0](a)
    if twice:  # that size is one too large for odd sides
        up = F.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
    up = F.interpolate(up, size=size, mode="bilinear", align_corners=align_corners)
    torch.testing.assert_close(fine_out, F.relu(a + up))
    torch.testing.assert_close(coarse_out, F.relu(down + b))


@pytest.mark.slow
def test_hrnet2x_has_five_branches_and_learns_them():
    backbone = TimmBackbone("hrnet2x_w20", norm="BN")
    backbone.read(list(backbone.output_shape()))
    maps = backbone(torch.randn(2, 3, 45, 61))
    sizes = [(23, 31), (12, 16), (6, 8), (3, 4), (2, 2)]
    assert [m.shape[1:] for m in maps.values()] == [(20 * 2**i, *s) for i, s in enumerate(sizes)]
    sum(m.sum() for m in maps.values()).backward()
    assert all(p.grad is not None for p in backbone.parameters())


def test_hrnet_takes_images_of_any_size():
    model = build_model(make_cfg("MODEL.PAD_TO_MULTIPLE", 1, backbone="hrnet_w18_small")).eval()
    with torch.no_grad():
        coarse, refined = model.layers(make_batch(65, 97)[:1])
    assert model.divisor == 1 and coarse.shape == refined.shape == (1, 5, 17, 25)


@pytest.mark.parametrize("align_corners", [False, True])
def test_corners_in_the_head(align_corners):
    """Features, the finest first, regions, full-size logits and losses: all resized in one way."""
    shapes = {
        "s1": ShapeSpec(channels=8, stride=4),
        "s2": ShapeSpec(channels=8, stride=8),
    }
    torch.manual_seed(0)
    head = ContextSemSegHead(
        shapes,
        in_features=["s2", "s1"],
        coarse_in_features=["s2"],
        num_classes=5,
        context=build_context(make_cfg("MODEL.OCR.DROPOUT", 0.0), 16),
        criterion=take_criterion({"coarse_loss_weight": 0.4}),
        ocr_channels=32,
        ocr_norm="BN",
        coarse_channels=24,
        align_corners=align_corners,
    ).eval()
    features = make_features(shapes)
    targets = torch.randint(0, 5, (2, 64, 96), generator=torch.Generator().manual_seed(1))

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


@pytest.mark.slow
def test_contracted_dilation():
    """Half the dilation in the first block of the dilated stages, by the taps of each kernel."""
    cfg = make_resnet_cfg(50)
    for contracted, first in ((False, (2, 4)), (True, (1, 2))):
        cfg.MODEL.RESNETS.CONTRACT_DILATION = contracted
        backbone = build_backbone(cfg)
        for stage, dilation, expected in (
            (backbone.res4, 2, first[0]),
            (backbone.res5, 4, first[1]),
        ):
            blocks = [block.conv2 for block in stage]
            assert [c.dilation for c in blocks] == [(expected,) * 2] + [(dilation,) * 2] * (
                len(blocks) - 1
            )
            assert all(c.padding == c.dilation for c in blocks)
        assert backbone(torch.zeros(1, 3, 64, 96))["res5"].shape[2:] == (8, 12)


@pytest.mark.slow
def test_ceil_mode_of_the_stem():
    """64 pixels: 32 after the stem's convolutions; windows of 3 at steps of 2 from -1 on start
    16 times inside, and once more at 31, with the last pixel and the border."""
    cfg = make_resnet_cfg(50)
    cfg.MODEL.RESNETS.STEM_CEIL_MODE = True
    stem = build_backbone(cfg).stem.eval()
    x = torch.randn(1, 3, 64, 66)
    with torch.no_grad():
        pooled = stem(x)
        y = x
        for conv in (stem.conv1, stem.conv2, stem.conv3):
            y = F.relu(conv(y))
    assert pooled.shape[2:] == (17, 17)
    for row, column in ((0, 0), (5, 7), (16, 16), (16, 3)):
        top, left = max(2 * row - 1, 0), max(2 * column - 1, 0)
        window = y[0, :, top : 2 * row + 2, left : 2 * column + 2]
        assert torch.equal(pooled[0, :, row, column], window.amax((1, 2)))


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("DEPTH", 18, "DEPTH is 18; .* 50, 101 or 152 .* MODEL.TIMM.NAME resnet18"),
        ("RES5_DILATION", 1, "are 2 and 1; 2 and 4 give stride 8, .*1 and 2 .* 16, 1 and 1 .* 32"),
        ("STEM_TYPE", "deep", "STEM_TYPE is deep; it is deeplab .* or basic"),
    ],
)
def test_dilated_resnet_that_does_not_exist(key, value, message):
    cfg = make_resnet_cfg(50)
    cfg.MODEL.RESNETS[key] = value
    with pytest.raises(ValueError, match=message):
        build_backbone(cfg)


@pytest.mark.slow
def test_output_strides():
    """Dilated ResNet: 8 for stages 3 and 4. HRNet: 4, 8, 16, 32 with 48, 96, 192, 384 channels,
    whose concatenation has 720. Declared and real."""
    for cfg in (make_resnet_cfg(50), make_cfg()):
        backbone, head = build_backbone(cfg), cfg.MODEL.SEM_SEG_HEAD
        features = backbone(torch.zeros(1, 3, 64, 96))
        for name in (*head.IN_FEATURES, *head.COARSE_IN_FEATURES):
            assert backbone.output_shape()[name].stride == 8
            assert features[name].shape[2:] == (8, 12)
    hrnet = TimmBackbone("hrnet_w48", norm="BN")
    with torch.no_grad():
        features = hrnet(torch.zeros(1, 3, 64, 96))
    for i, channels in ((1, 48), (2, 96), (3, 192), (4, 384)):
        shape, stride = hrnet.output_shape()[f"stage{i}"], 2 ** (i + 1)
        assert (shape.channels, shape.stride) == (channels, stride)
        assert features[f"stage{i}"].shape == (1, channels, 64 // stride, 96 // stride)


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
