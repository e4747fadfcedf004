"""Masks kept in one map equal Detectron2's separate masks."""

import pickle

import pytest
import torch
from detectron2.structures import BitMasks, Boxes, Instances

from ocr_panoptic.data.panoptic.mapper import SegmentMasks

SIZE = (40, 60)


@pytest.fixture(params=[torch.uint8, torch.int32])
def pair(request):
    """Return seven masks, including an empty mask, and Detectron2's masks of the same objects."""
    torch.manual_seed(0)
    places = torch.randint(0, 9, (10, 15)).repeat_interleave(4, 0).repeat_interleave(4, 1)
    segments = torch.tensor([8, 3, 1, 200, 5, 2, 7])
    theirs = BitMasks(places == segments[:, None, None])
    return SegmentMasks(places.to(request.param), segments.to(request.param)), theirs


@pytest.mark.parametrize(
    "item",
    [
        ...,
        3,
        slice(1, 5),
        torch.tensor([True, False] * 3 + [True]),
        torch.tensor([6, 0, 0, 2]),  # fewer rows than segments
        torch.arange(40) % 7,  # more rows
        torch.zeros(0, dtype=torch.long),
    ],
)
def test_equals_detectron2s(pair, item):
    ours, theirs = pair if item is ... else (masks[item] for masks in pair)
    assert len(ours) == len(theirs) and ours.image_size == theirs.image_size
    assert torch.equal(ours.tensor, theirs.tensor)
    assert torch.equal(ours.nonempty(), theirs.nonempty())
    assert torch.equal(ours.get_bounding_boxes().tensor, theirs.get_bounding_boxes().tensor)
    corners = torch.rand(len(ours), 2) * 30
    boxes = torch.cat([corners, corners + 1 + torch.rand(len(ours), 2) * 29], dim=1)
    crops = ours.crop_and_resize(boxes, 14)
    assert torch.equal(crops, theirs.crop_and_resize(boxes, 14))
    assert crops.any() or len(ours) <= 1


def test_of_instances(pair):
    """Instances with these masks are indexed, moved and sent to another process."""
    ours, theirs = pair
    instances = Instances(SIZE, gt_masks=ours, gt_boxes=Boxes(torch.zeros(7, 4)))
    sent = pickle.loads(pickle.dumps(instances[torch.tensor([2, 2, 6])].to("cpu")))
    assert torch.equal(sent.gt_masks.tensor, theirs.tensor[[2, 2, 6]])
    assert [mask.shape for mask in sent.gt_masks] == [SIZE] * 3
    assert str(sent.gt_masks) == "SegmentMasks(num_instances=3)"
    joined = Instances.cat([instances, sent]).gt_masks.tensor
    assert torch.equal(joined, torch.cat([theirs.tensor, theirs.tensor[[2, 2, 6]]]))
