"""Anchors and proposals on void and crowds are not learned; without them, nothing changes."""

import copy

import pytest
import torch
from detectron2.modeling import build_model
from detectron2.modeling.box_regression import Box2BoxTransform
from detectron2.modeling.matcher import Matcher
from detectron2.structures import Boxes, Instances
from detectron2.utils.events import EventStorage
from torch import nn

from ocr_panoptic.config.files import CLASS_KEYS, EXACT
from ocr_panoptic.modeling.ignored_pixels import IgnoringRPN, PartlyLabelled, mostly_inside
from ocr_panoptic.workbench.exporting.instances import check_instances

RPN_NAME = "MODEL.PROPOSAL_GENERATOR.NAME"


def test_half_of_a_box_by_hand():
    """Void is the left half of 4x4 pixels."""
    void = torch.zeros(4, 4, dtype=torch.bool)
    void[:, :2] = True
    expected = {
        (0.0, 0.0, 4.0, 4.0): False,  # 8 of 16 is not more than half
        (0.0, 0.0, 3.75, 4.0): True,  # 8 of 15
        (0.5, 0.25, 3.75, 0.5): False,  # 0.375 of 0.8125, all within a row
        (0.5, 0.25, 3.25, 0.5): True,  # 0.375 of 0.6875
        (-5.0, -9.0, 3.0, 4.0): True,  # 8 of the 12 pixels in the image
        (-5.0, 0.0, -1.0, 4.0): False,  # not in the image
        (1.0, 1.0, 1.0, 3.0): False,  # empty
    }
    boxes = torch.tensor([*expected])
    assert mostly_inside(boxes, void).tolist() == [*expected.values()]
    assert mostly_inside(boxes[:0], void).shape == (0,)


def test_fractional_boxes_equal_counted_parts_of_pixels():
    """Coordinates are multiples of 1/8 pixel, so 64 parts of each pixel can be counted."""
    torch.manual_seed(0)
    mask = torch.rand(9, 13) < 0.5
    parts = mask.repeat_interleave(8, 0).repeat_interleave(8, 1)
    corners = torch.randint(-40, 120, (500, 2, 2)).sort(dim=1).values
    boxes = corners.reshape(-1, 4)
    ends = boxes.clamp(min=0).tolist()
    found = [parts[top:bottom, left:right] for left, top, right, bottom in ends]
    expected = [2 * part.sum() > part.numel() for part in found]
    assert mostly_inside(boxes / 8, mask).tolist() == expected
    assert 100 < sum(expected) < 400


def some_truth(box: list[float], void: tuple[slice, slice]) -> PartlyLabelled:
    """Return the truth of 32x32 pixels with an object of class 1 and a region of void."""
    instances = Instances((32, 32), gt_boxes=Boxes([box]), gt_classes=torch.tensor([1]))
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[void] = True
    return PartlyLabelled(instances, mask)


BOXES = [
    [0.0, 0, 8, 8],  # the object
    [0.0, 1, 8, 9],  # IoU 7/9
    [0.0, 16, 8, 24],  # background
    [16.0, 16, 24, 24],  # void
    [12.0, 16, 20, 24],  # half void
    [12.5, 16, 20.5, 24],  # 9/16 void
]
VOID = slice(16, 32), slice(16, 32)


def test_labels_of_anchors_by_hand():
    """Without void, the last three anchors are background; the second image has none."""
    rpn = IgnoringRPN(
        in_features=["p2"],
        head=nn.Identity(),
        anchor_generator=nn.Identity(),
        anchor_matcher=Matcher([0.3, 0.7], [0, -1, 1], allow_low_quality_matches=True),
        box2box_transform=Box2BoxTransform((1, 1, 1, 1)),
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_topk=(9, 9),
        post_nms_topk=(9, 9),
    )
    partly = some_truth(BOXES[0], VOID)
    whole = Instances((32, 32), **partly.get_fields())
    anchors = [Boxes(BOXES[:2]), Boxes(BOXES[2:])]
    labels, matched = rpn.label_and_sample_anchors(anchors, [partly.to("cpu"), whole])
    assert [label.tolist() for label in labels] == [[1, 1, 0, -1, 0, -1], [1, 1, 0, 0, 0, 0]]
    assert [boxes[:2].tolist() for boxes in matched] == [[BOXES[0]] * 2] * 2
    empty = PartlyLabelled(whole[:0], torch.ones(32, 32, dtype=torch.bool))
    labels, _ = rpn.label_and_sample_anchors(anchors, [empty])
    assert labels[0].tolist() == [-1] * 6


def test_proposals_by_hand(small_cfg):
    """An object's own box stays positive, even if void fills most of it."""
    heads = build_model(small_cfg("plain")).roi_heads
    proposals = Instances((32, 32), proposal_boxes=Boxes(BOXES), objectness_logits=torch.zeros(6))
    sampled = {}
    for box in (BOXES[0], BOXES[3]):
        truth = some_truth(box, VOID)
        with EventStorage():
            for target in (truth, Instances((32, 32), **truth.get_fields())):
                (found,) = heads.label_and_sample_proposals([copy.deepcopy(proposals)], [target])
                boxes = found.proposal_boxes.tensor.tolist()
                sampled[box[0], type(target)] = sorted(zip(boxes, found.gt_classes.tolist()))
    expected = [(BOXES[0], 1)] * 2 + [(BOXES[1], 1), (BOXES[2], 2), (BOXES[4], 2)]
    assert sampled[0, PartlyLabelled] == sorted(expected)
    assert sampled[0, Instances] == sorted([*expected, (BOXES[3], 2), (BOXES[5], 2)])
    others = [(BOXES[k], 2) for k in (0, 1, 2, 4)]
    assert sampled[16, PartlyLabelled] == sorted([*others, (BOXES[3], 1)])


def test_export_allows_this_rpn(small_cfg):
    check_instances(build_model(small_cfg("plain", RPN_NAME, "IgnoringRPN")))


def losses_and_gradients(cfg, records, weights=None) -> tuple[dict, list, dict]:
    torch.manual_seed(0)
    model = build_model(cfg).train()
    if weights:
        model.load_state_dict(weights)
    weights = copy.deepcopy(model.state_dict())
    torch.manual_seed(1)
    with EventStorage():
        losses = model(copy.deepcopy(records))
    sum(losses.values()).backward()
    return losses, [p.grad for p in model.parameters() if p.grad is not None], weights


def with_void(record: dict, void: tuple | None) -> dict:
    mask = torch.zeros(record["image"].shape[1:], dtype=torch.bool)
    if void is not None:
        mask[void] = True
    return {**record, "instances": PartlyLabelled(record["instances"], mask)}


@pytest.mark.parametrize("head", ["plain", "ocr"])
def test_nothing_changes_without_void(head, small_cfg, batch):
    """Losses and gradients equal those of Detectron2's classes to the last bit."""
    records = batch(2)
    theirs = [word for pair in zip(CLASS_KEYS, EXACT) for word in pair]
    expected, gradients, weights = losses_and_gradients(small_cfg(head, *theirs), records)
    cfg = small_cfg(head, RPN_NAME, "IgnoringRPN")
    for ours in (records, [with_void(records[0], None), records[1]]):
        losses, own, _ = losses_and_gradients(cfg, ours, weights)
        assert losses == expected
        assert all(torch.equal(a, b) for a, b in zip(own, gradients, strict=True))
    losses, _, _ = losses_and_gradients(cfg, [with_void(r, ...) for r in records], weights)
    changed = {name for name in expected if losses[name] != expected[name]}
    assert changed >= {"loss_rpn_cls", "loss_cls"} and not changed & {"loss_sem_seg"}


def test_a_batch_of_only_void_is_trained(small_cfg, batch):
    records = [with_void(record, ...) for record in batch(2)]
    for record in records:
        record["instances"] = PartlyLabelled(record["instances"][:0], record["instances"].ignored)
        record["sem_seg"] = torch.full_like(record["sem_seg"], 255)
    losses, gradients, _ = losses_and_gradients(small_cfg("ocr", RPN_NAME, "IgnoringRPN"), records)
    assert all(loss == 0 for loss in losses.values())
    assert all(gradient.isfinite().all() for gradient in gradients)
