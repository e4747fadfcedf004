"""The semantic-only architecture: training, labels of images of any size, published sizes."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.modeling import build_model

from ocr_panoptic.modeling import OCRSemanticSegmentor
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from support.segmentors import make_batch, make_cfg, make_resnet_cfg


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, backbone",
    [*((name, "test_resnet") for name in CONTEXT_SCHEMES), ("OCR", "hrnet_w18_small")],
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
        # An untrained classifier may prefer one class everywhere; remove this preference.
        model.sem_seg_head.refined_predictor.bias -= refined.mean(dim=(0, 2, 3))
        outputs = model(batch)
        _, refined = model.layers(batch[:1])
    stride = model.sem_seg_head.common_stride
    full = F.interpolate(refined, scale_factor=stride, mode="bilinear", align_corners=False)
    expected = full[0, :, :61, :83].argmax(0)
    assert len(expected.unique()) > 1
    assert (outputs[0]["labels"] != expected).float().mean() < 0.002  # rounding decides ties
    assert outputs[0]["labels"].shape == (61, 83)


@pytest.mark.slow
def test_gt_ocr_without_truth():
    model = build_model(make_cfg("MODEL.CONTEXT.NAME", "GT-OCR")).eval()
    batch = make_batch()
    del batch[0]["sem_seg"]
    with pytest.raises(ValueError, match="GroundTruthOCR .* needs the ground truth"):
        model(batch[:1])


@pytest.mark.slow
@pytest.mark.parametrize("several_scales", [False, True])
def test_training_without_truth_is_refused(several_scales):
    model = build_model(make_cfg("MODEL.HMSA.ENABLED", several_scales)).train()
    batch = [{"image": inputs["image"]} for inputs in make_batch()]
    with pytest.raises(ValueError, match="Training needs the ground truth .*sem_seg"):
        model(batch)


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
    """Only two biases before norms, which cancel them, are missing."""
    cfg = make_cfg(backbone=backbone)
    cfg.MODEL.SEM_SEG_HEAD.COARSE_KERNEL = 1
    cfg.MODEL.SEM_SEG_HEAD.COARSE_CHANNELS = channels
    assert count(cfg) == published - 512 - channels


@pytest.mark.slow
@pytest.mark.parametrize(
    "features, count", [(["stage1"], 39), (["stage2", "stage4"], 21), (None, 0)]
)
def test_unused_parameters_of_an_hrnet_are_frozen(features, count):
    """DistributedDataParallel stops in the second iteration if a gradient is missing."""
    cfg = make_cfg(backbone="hrnet_w18_small")
    if features is not None:
        cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES = cfg.MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES = features
    model = build_model(cfg).train()
    sum(model(make_batch()).values()).backward()
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, p in model.named_parameters() if p.grad is None}
    assert len(frozen) == count


@pytest.mark.slow
def test_odd_sizes_are_padded_to_the_stride():
    """61 x 83 pixels have 8 x 11 features at stride 8, which cover 64 x 88 pixels."""
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


@pytest.mark.slow
def test_parameters_of_resnet_101_ocr():
    """
    Torchvision's ResNet-101 without classifier has 42,500,160 parameters.

    The deep stem replaces its 7x7 convolution (64 channels) by three 3x3 (64, 64, 128), and widens
    the input of the first block's two 1x1 convolutions.
    """
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
