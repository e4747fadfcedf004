"""SegFix: losses and inference."""

import numpy as np
import pytest
import torch
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model
from torch import Tensor

from ocr_panoptic.formats.offsets import IGNORED, MIRRORED, offset_labels
from ocr_panoptic.layers import rarity_weighted_cross_entropy
from ocr_panoptic.segfix import SegFix, SegFixHead
from support.segmentors import make_offsets_batch, make_segfix_cfg


def make_segfix(*opts: object) -> SegFix:
    torch.manual_seed(0)
    model = build_model(make_segfix_cfg(*opts))
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(make_offsets_batch())
    for branch in (model.sem_seg_head.boundary, model.sem_seg_head.direction):
        torch.nn.init.normal_(branch[1].weight)
    return model.eval()


def bilinear(x: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)


def head() -> SegFixHead:
    shapes = {"a": ShapeSpec(channels=3, stride=4), "b": ShapeSpec(channels=5, stride=8)}
    return SegFixHead(shapes, in_features=["b", "a"], channels=6, norm="BN", loss_weight=2.0)


def test_directions_count_only_at_predicted_boundaries():
    near = np.random.default_rng(0).random((2, 8, 8)) < 0.5
    direction = np.random.default_rng(1).integers(0, 9, (2, 8, 8))
    targets = torch.as_tensor(offset_labels(near, direction).astype(np.int64))
    targets[:, 0] = IGNORED
    torch.manual_seed(0)
    boundary, directions = torch.randn(2, 2, 8, 8), torch.randn(2, 8, 8, 8)
    boundary.requires_grad_()
    losses = head().losses(boundary, directions, targets)

    true_near, true_direction = torch.as_tensor(near).long(), torch.as_tensor(direction)
    true_near[:, 0] = IGNORED
    is_counted = (boundary.softmax(1)[:, 1] > 0.5) & (true_direction < 8)
    is_counted[:, 0] = False
    true_direction[~is_counted] = IGNORED
    expected = {
        "loss_boundary": 2 * rarity_weighted_cross_entropy(boundary, true_near, IGNORED),
        "loss_direction": 2 * rarity_weighted_cross_entropy(directions, true_direction, IGNORED),
    }
    for name, loss in expected.items():
        torch.testing.assert_close(losses[name], loss)
    assert not losses["loss_direction"].requires_grad  # no gradient reaches the boundary's branch


def test_features_are_joined_at_the_finest_size():
    features = {"a": torch.randn(1, 3, 6, 8), "b": torch.randn(1, 5, 3, 4)}
    ours = head().eval()
    x = torch.cat([features["a"], bilinear(features["b"], (6, 8))], dim=1)
    (boundary, direction), losses = ours(features)
    assert boundary.shape == (1, 2, 6, 8) and direction.shape == (1, 8, 6, 8) and not losses
    torch.testing.assert_close(boundary, ours.boundary(x))
    torch.testing.assert_close(direction, ours.direction(x))


def test_training_reaches_every_part():
    torch.manual_seed(0)
    model = build_model(make_segfix_cfg()).train()
    losses = model(make_offsets_batch())
    assert set(losses) == {"loss_boundary", "loss_direction"}
    sum(losses.values()).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(p.grad.any() for p in model.sem_seg_head.parameters())


def scores(model: SegFix, image: Tensor) -> Tensor:
    x = (image - model.pixel_mean) / model.pixel_std
    bottom, right = (-side % model.divisor for side in image.shape[1:])
    x = torch.nn.functional.pad(x, (0, right, 0, bottom))[None]
    with torch.no_grad():
        boundary, direction = (bilinear(y, x.shape[2:]) for y in model.layers(x))
    both = torch.cat([boundary.softmax(1)[:, 1:], direction], dim=1)
    return both[0, :, : image.shape[1], : image.shape[2]]


@pytest.mark.slow
def test_inference_and_its_size():
    model, image = make_segfix(), make_offsets_batch()[0]["image"]
    expected = scores(model, image)
    (found,) = model([{"image": image}])
    assert torch.equal(found["near_boundary"], expected[0] > 0.5)
    assert torch.equal(found["direction"], expected[1:].argmax(0))
    assert len(found["direction"].unique()) > 3 and len(found["near_boundary"].unique()) == 2
    (large,) = model([{"image": image, "height": 122, "width": 166}])
    assert large["direction"].shape == large["near_boundary"].shape == (122, 166)


@pytest.mark.slow
def test_with_flips_a_mirrored_image_has_mirrored_offsets():
    model, image = make_segfix("TEST.FLIP", True), make_offsets_batch(64, 96)[0]["image"]
    (found,), (mirrored,) = model([{"image": image}]), model([{"image": image.flip(2)}])
    table = torch.arange(8)
    for a, b in MIRRORED:
        table[[a, b]] = table[[b, a]]
    assert torch.equal(mirrored["near_boundary"], found["near_boundary"].flip(1))
    same = mirrored["direction"] == table[found["direction"]].flip(1)
    assert same.float().mean() > 0.999  # equal scores may fall on either side


def test_windows_average_probabilities_and_logits():
    windows = "TEST.SLIDING_WINDOW.SIZE", [32, 48], "TEST.SLIDING_WINDOW.STRIDE", [32, 24]
    model = make_segfix(*windows)
    image = make_offsets_batch(32, 72)[0]["image"]
    left, right = scores(model, image[:, :, :48]), scores(model, image[:, :, 24:])
    total = torch.zeros(9, 32, 72)
    total[:, :, :48] += left
    total[:, :, 24:] += right
    total[:, :, 24:48] /= 2
    (found,) = model([{"image": image}])
    assert torch.equal(found["near_boundary"], total[0] > 0.5)
    assert torch.equal(found["direction"], total[1:].argmax(0))
