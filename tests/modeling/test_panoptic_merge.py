"""The merge, compared with Detectron2's."""

import torch
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.structures import Instances

from ocr_panoptic.modeling.panoptic_merge import MergeRules, merge_panoptic


def random_case(seed: int) -> tuple[Instances, torch.Tensor, tuple[float, float, float]]:
    """Return 0 to 8 overlapping boxes, labels, and limits that values often meet exactly."""
    generator = torch.Generator().manual_seed(seed)

    def integer(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=generator)

    height, width, n = int(integer(20)) + 1, int(integer(20)) + 1, int(integer(9))
    instances = Instances((height, width))
    instances.scores = integer(5, n) / 4
    instances.pred_classes = integer(80, n)
    masks = torch.zeros(n, height, width, dtype=torch.bool)
    for mask in masks:
        (top, bottom), (left, right) = (
            integer(height + 1, 2).sort()[0],
            integer(width + 1, 2).sort()[0],
        )
        mask[top:bottom, left:right] = True
    masks |= (integer(8, n) == 0)[:, None, None]
    instances.pred_masks = masks
    labels = integer(4, height, width) * (integer(3, height, width) > 0)
    limits = integer(5, 1).item() / 4, float(integer(30)), integer(5, 1).item() / 4
    return instances, labels, limits


def alike(overlap: float, stuff_area: float, score: float) -> MergeRules:
    return MergeRules(overlap, (score,) * 80, (stuff_area,) * 4)


def test_equals_detectron2s_on_random_cases():
    things = stuff = rejected = 0
    for seed in range(200):
        instances, labels, limits = random_case(seed)
        expected, expected_segments = combine_semantic_and_instance_outputs(
            instances, labels, *limits
        )
        found, segments = merge_panoptic(instances, labels, alike(*limits))
        assert found.dtype == expected.dtype and torch.equal(found, expected), seed
        assert segments == expected_segments, seed
        count = sum(segment["isthing"] for segment in segments)
        things, stuff = things + count, stuff + len(segments) - count
        rejected += len(instances) - count
    assert min(things, stuff, rejected) > 50  # the cases reach all branches


def test_classes_have_separate_limits():
    """Class 0 is refused at 0.6, class 1 is taken at 0.4; label 2 has 3 of 4 pixels."""
    instances = Instances((2, 4))
    instances.scores, instances.pred_classes = torch.tensor([0.6, 0.4]), torch.tensor([0, 1])
    masks = torch.zeros(2, 2, 4, dtype=torch.bool)
    masks[0, :, 0] = masks[1, :, 1] = True
    instances.pred_masks = masks
    labels = torch.tensor([[1, 1, 1, 2], [2, 2, 1, 2]])
    rules = MergeRules(0.5, (0.7, 0.3), (0.0, 2.0, 4.0))
    ids, segments = merge_panoptic(instances, labels, rules)
    assert [(s["isthing"], s["category_id"]) for s in segments] == [(True, 1), (False, 1)]
    assert ids.tolist() == [[2, 1, 2, 0], [0, 1, 2, 0]]
