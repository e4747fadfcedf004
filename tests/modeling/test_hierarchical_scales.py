"""Hierarchical multi-scale attention, compared with its formulas."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling import build_model
from torch import nn

from support.segmentors import make_batch, make_cfg

HMSA = ("MODEL.HMSA.ENABLED", True)
SIZE = (64, 96)


def make_model(*opts):
    torch.manual_seed(0)
    model = build_model(make_cfg(*HMSA, "MODEL.OCR.DROPOUT", 0.0, *opts)).eval()
    # Make attention vary: without a bias its logits are near 0 in an untrained network.
    model.sem_seg_head.scale_attention[2].weight.data *= 1000
    return model


def make_image():
    return torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def to(x, size):
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def view(model, image, scale):
    """Return coarse logits, refined logits and attention at the size of the scaled image."""
    image = to(image, [int(scale * side) for side in image.shape[2:]])
    features = model.backbone(image)
    head = model.sem_seg_head
    coarse = head.coarse_predictor(head.coarse(head.representations(features)[0]))
    _, x, regions = head.prepare(features)
    z = head.context(x, regions)
    logits, attention = head.refined_predictor(z), head.scale_attention(z)
    if head.residual:
        logits = logits + to(coarse, logits.shape[2:])
    return [to(m, image.shape[2:]) for m in (coarse, logits, attention)]


@pytest.mark.slow
@pytest.mark.parametrize("scales", ["[0.5, 1.0]", "[1.0, 0.5]"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("size, padding", [(SIZE, 0), ((55, 83), 1)])
def test_two_scales(scales, residual, size, padding):
    """Without padding, images of any size work, as in the published code."""
    opts = "MODEL.PAD_TO_MULTIPLE", padding, "MODEL.OCR.RESIDUAL", residual
    model = make_model("TEST.SCALES", scales, *opts)
    nn.init.normal_(model.sem_seg_head.refined_predictor.weight)
    image = make_image()[..., : size[0], : size[1]]
    with torch.no_grad():
        (_, low, a), (_, high, _) = view(model, image, 0.5), view(model, image, 1.0)
        assert a.std() > 0.01
        expected = to(a * low, size) + (1 - to(a, size)) * high
        torch.testing.assert_close(model.logits(image), expected)


@pytest.mark.slow
@pytest.mark.parametrize("size, padding", [(SIZE, 0), ((61, 83), 1)])
def test_losses(size, padding):
    """L = main(joint) + 0.4 aux(joint coarse) + w (aux(p at 0.5) + aux(p at 1.0))."""
    kinds = (
        *("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "0.5 binary_cross_entropy + 0.5 rmi"),
        *("MODEL.SEM_SEG_HEAD.COARSE_LOSS_TYPE", "binary_cross_entropy"),
        *("MODEL.OCR.COARSE_LOSS_WEIGHT", 0.4, "MODEL.HMSA.SCALE_LOSS_WEIGHT", 0.05),
        *("MODEL.SEM_SEG_HEAD.COARSE_DROPOUT", 0.0, "MODEL.SEM_SEG_HEAD.LOSS_WEIGHT", 1.0),
        *("MODEL.PAD_TO_MULTIPLE", padding),
    )
    model, batch = make_model(*kinds), make_batch(*size)
    targets = torch.stack([inputs["sem_seg"] for inputs in batch])
    criterion = model.sem_seg_head.criterion
    with torch.no_grad():
        model.train()
        for module in model.modules():  # the same statistics in both computations
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        seen = []
        hook = model.backbone.register_forward_pre_hook(lambda _, x: seen.append(x[0].shape[2:]))
        found = model(batch)
        hook.remove()
        assert seen == [tuple(side // 2 for side in size), size]  # the published order
        image = torch.stack([model.normalised(inputs["image"]) for inputs in batch])
        (coarse_low, low, a), (coarse, high, _) = view(model, image, 0.5), view(model, image, 1)
        up = to(a, size)
        joint = to(a * low, size) + (1 - up) * high
        joint_coarse = to(a * coarse_low, size) + (1 - up) * coarse
        expected = criterion(joint_coarse, joint, targets)

    def binary(logits):
        valid = (targets != 255)[:, None]
        truth = F.one_hot(targets.clamp(max=4), 5).permute(0, 3, 1, 2).float()
        p = logits.double().sigmoid()
        losses = -(truth * p.log() + (1 - truth) * (1 - p).log()) * valid
        return losses.sum() / (valid.sum() + 1)

    expected["loss_sem_seg_scales"] = 0.05 * (binary(to(low, size)) + binary(high))
    assert set(found) == set(expected)
    for name, loss in found.items():
        assert loss.item() == pytest.approx(expected[name].item(), rel=1e-5)
    coarse_loss = 0.4 * binary(joint_coarse)
    assert found["loss_sem_seg_coarse"].item() == pytest.approx(coarse_loss.item(), rel=1e-5)


def test_no_losses_of_single_scales():
    model = make_model("MODEL.HMSA.SCALE_LOSS_WEIGHT", 0.0).train()
    assert set(model(make_batch())) == {"loss_sem_seg", "loss_sem_seg_coarse"}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["OCR", "none", "PPM-OCR", "Joint-Transformer"])
def test_schemes_train_and_label_images_of_any_size(scheme):
    opts = ("MODEL.CONTEXT.NAME", scheme, "TEST.SCALES", "[0.5, 1.0, 1.5]", "TEST.FLIP", True)
    model, batch = make_model(*opts), make_batch()
    sum(model.train()(batch).values()).backward()
    assert [k for k, p in model.named_parameters() if p.grad is None] == []
    outputs = model.eval()(batch[:1])
    assert outputs[0]["labels"].shape == (61, 83)
