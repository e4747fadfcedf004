"""Losses by bands of rows against the full-size logits, and the weights of rare classes."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from ocr_panoptic.layers import (
    bands,
    binary_cross_entropy,
    dice_loss,
    lovasz_softmax,
    pixel_cross_entropy,
    rarity_weighted_cross_entropy,
    region_mutual_information,
    resize,
)
from studies.measurement import saved_bytes
from studies.training_memory import AllocatedBytes


def at_full_size(logits, targets, ignore_value, align_corners=False):
    logits = resize(logits, targets.shape[1:], align_corners)
    return F.cross_entropy(logits, targets, ignore_index=ignore_value, reduction="none")


def make_input(size=(8, 11), full=(61, 83), classes=5, dtype=torch.float64):
    """Three images, one of them ignored."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, classes, *size, generator=generator, dtype=dtype)
    targets = torch.randint(classes, (3, *full), generator=generator)
    targets[0, :7], targets[1] = 255, 255
    return logits.requires_grad_(), targets, torch.randn(3, *full, generator=generator).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    "size, full",
    [
        ((8, 11), (61, 83)),
        ((16, 24), (64, 96)),
        ((97, 97), (776, 776)),
        ((9, 7), (9, 7)),
        ((30, 40), (13, 17)),
        ((1, 3), (5, 9)),
        ((3, 1), (1, 4)),
    ],
)
@pytest.mark.parametrize("rows", [1, 7, 10**6])
def test_losses_and_gradients_of_any_size(monkeypatch, size, full, align_corners, rows):
    if full == (776, 776) and rows == 1:
        rows = 50
    logits, targets, weights = make_input(size, full)
    monkeypatch.setitem(bands.BAND_BYTES, "cpu", rows * 3 * 5 * full[1] * 8)
    found = pixel_cross_entropy(logits, targets, 255, align_corners)
    expected = at_full_size(logits, targets, 255, align_corners)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    gradients = [torch.autograd.grad((y * weights).sum(), logits)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)
    assert gradients[0][1].eq(0).all() and gradients[0][2].ne(0).any()


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    "loss", [binary_cross_entropy, dice_loss, lovasz_softmax, region_mutual_information]
)
def test_losses_of_classes_at_a_lower_resolution(monkeypatch, loss, align_corners):
    logits, targets, _ = make_input()
    expected = loss(resize(logits, targets.shape[1:], align_corners), targets, 255)
    expected = expected, torch.autograd.grad(expected, logits)[0]
    monkeypatch.setitem(bands.BAND_BYTES, "cpu", 7 * 3 * 5 * 83 * 8)
    found = loss(logits, targets, 255, None, align_corners)
    torch.testing.assert_close(found, expected[0], rtol=1e-12, atol=0)
    gradients = torch.autograd.grad(found, logits)[0], expected[1]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_float32_in_autocast(dtype):
    logits, targets, weights = make_input(dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = pixel_cross_entropy(logits, targets, 255, False)
    expected = at_full_size(logits.float(), targets, 255)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
    gradients = [torch.autograd.grad((y * weights).sum(), logits)[0] for y in (found, expected)]
    assert gradients[0].dtype == dtype
    torch.testing.assert_close(*gradients, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("loss", [pixel_cross_entropy, binary_cross_entropy, dice_loss])
def test_full_size_logits_are_never_there(loss):
    """Logits of full size would have 4.9 MiB; the logits have 0.3, and a band 1."""
    logits, targets, _ = make_input((40, 60), (160, 240), classes=11, dtype=torch.float32)
    with AllocatedBytes() as allocated:
        losses, saved = saved_bytes(lambda: loss(logits, targets, 255))
        losses.sum().backward()
    full = targets.numel() * 11 * 4
    assert allocated.largest <= bands.BAND_BYTES["cpu"] < full / 4
    assert logits.nbytes + targets.nbytes <= saved < logits.nbytes + targets.nbytes + 1000


IGNORE = 255


@pytest.mark.parametrize("gib, mib", [(4, 32), (11, 88), (24, 128), (80, 128)])
def test_bands_of_a_gpu(monkeypatch, gib, mib):
    """Few of them, and not much of a small GPU's memory; on a CPU what its cache holds."""
    card = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert bands.band_bytes(torch.device("cuda")) == mib * 2**20
    assert bands.band_bytes(torch.device("cpu")) == 2**20


def reference(logits: torch.Tensor, targets: torch.Tensor) -> float:
    valid = [(n, y, x) for n, y, x in (targets != IGNORE).nonzero().tolist()]
    labels = [targets[place].item() for place in valid]
    weights = [1 - labels.count(k) / len(labels) for k in range(logits.shape[1])]
    total = weight = 0.0
    for (n, y, x), label in zip(valid, labels, strict=True):
        scores = logits[n, :, y, x].tolist()
        loss = math.log(sum(math.exp(s) for s in scores)) - scores[label]
        total += weights[label] * loss
        weight += weights[label]
    return total / weight


@pytest.mark.parametrize("classes", [2, 8])
def test_reference(classes):
    torch.manual_seed(0)
    logits = torch.randn(2, classes, 5, 7, dtype=torch.float64)
    targets = torch.randint(0, classes, (2, 5, 7))
    targets[:, 1] = IGNORE
    targets[:, 2:] *= torch.rand(2, 3, 7) < 0.3  # unequal shares
    found = rarity_weighted_cross_entropy(logits, targets, IGNORE)
    assert found.item() == pytest.approx(reference(logits, targets))
    found = rarity_weighted_cross_entropy(logits.float(), targets, IGNORE)
    assert found.item() == pytest.approx(reference(logits, targets), rel=1e-5)


@pytest.mark.parametrize("label", [IGNORE, 1])
def test_nothing_to_tell_apart_gives_no_loss_and_no_gradient(label):
    logits = torch.randn(1, 2, 3, 3, requires_grad=True)
    loss = rarity_weighted_cross_entropy(logits, torch.full((1, 3, 3), label), IGNORE)
    loss.backward()
    assert loss == 0 and not logits.grad.any()
