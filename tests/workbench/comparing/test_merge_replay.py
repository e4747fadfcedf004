"""Replayed merges against the merge itself, counted by PanopticQuality."""

import numpy as np
import pytest
import torch
from detectron2.structures import Instances

from ocr_panoptic.evaluation.panoptic_quality import PanopticQuality
from ocr_panoptic.modeling.panoptic_merge import MergeRules, merge_panoptic
from ocr_panoptic.workbench.comparing.merge_replay import Rules, keep_image, replay

THINGS, LABELS = 3, 4
# Category ids of the thing classes, and of the labels 1, 2, 3.
IDS = [12, 5, 7], [3, 40, 11]
CATEGORIES = [{"id": i, "isthing": int(i in IDS[0])} for i in (3, 5, 7, 11, 12, 40)]


def random_image(rng: np.random.Generator):
    """Boxes as instances and as true segments, which hit each other now and then; void, a segment
    that the JSON does not name, crowds."""
    height, width, n = 24, 30, int(rng.integers(0, 9))

    def boxes(count: int) -> np.ndarray:
        masks = np.zeros((count, height, width), dtype=bool)
        for mask in masks:
            top, left = rng.integers(0, (height - 4, width - 4))
            mask[top : top + rng.integers(2, 14), left : left + rng.integers(2, 14)] = True
        return masks

    masks = boxes(n)
    labels = np.repeat(np.repeat(rng.integers(0, LABELS, (6, 6)), 4, 0), 5, 1)
    labels[rng.random(labels.shape) < 0.05] = 2
    ids, segments = np.zeros((height, width), np.int64), []
    of_label = [0, *IDS[1]]
    for label in range(1, LABELS):
        ids[labels == label] = 100 + label
        segments.append({"id": 100 + label, "category_id": of_label[label]})
    truths = [mask for mask in masks if rng.random() < 0.6] + list(boxes(3))
    for i, mask in enumerate(truths):
        ids[mask] = 60 - i
        is_crowd = int(rng.random() < 0.2)
        category = IDS[0][int(rng.integers(THINGS))]
        segments.append({"id": 60 - i, "category_id": category, "iscrowd": is_crowd})
    ids[:2] = 999
    instances = Instances((height, width))
    instances.scores = torch.tensor(rng.integers(1, 20, n) / 20, dtype=torch.float32)
    instances.scores = instances.scores.sort(descending=True)[0]
    instances.pred_classes = torch.tensor(rng.integers(0, THINGS, n))
    instances.pred_masks = torch.tensor(masks)
    return instances, torch.tensor(labels), ids, segments


@pytest.mark.slow
def test_equals_the_merge_and_its_panoptic_quality():
    """The counts of 60 settings on 30 images are equal, the sums of the IoUs to the last digit."""
    rng = np.random.default_rng(0)
    settings = [
        MergeRules(
            float(rng.integers(0, 5)) / 4,
            tuple(rng.integers(0, 20, THINGS) / 20),
            tuple(map(float, rng.integers(0, 80, LABELS))),
        )
        for _ in range(60)
    ]
    rules = Rules(*(np.array(field) for field in zip(*map(vars_of, settings), strict=True)))
    order = [category["id"] for category in CATEGORIES]
    rows = np.array([order.index(i) for i in IDS[0]] + [-1] + [order.index(i) for i in IDS[1]])
    totals = np.zeros((len(settings), len(CATEGORIES), 4))
    expected = [PanopticQuality(CATEGORIES) for _ in settings]
    for _ in range(30):
        instances, labels, ids, segments = random_image(rng)
        kept = keep_image(
            instances.scores.numpy(),
            instances.pred_classes.numpy(),
            instances.pred_masks.numpy(),
            labels.numpy(),
            ids,
            segments,
            order,
        )
        assert kept.pixels.sum() == ids.size
        replay(kept, rules, rows, totals)
        for setting, quality in zip(settings, expected, strict=True):
            merged, found = merge_panoptic(instances, labels, setting)
            for segment in found:
                number = segment["category_id"]
                segment["category_id"] = (
                    IDS[0][number] if segment["isthing"] else IDS[1][number - 1]
                )
            quality.add_image(ids, segments, merged.numpy(), found)
    assert (totals == np.stack([quality.statistics() for quality in expected])).all()
    assert (totals.sum(axis=(0, 1)) > 50).all()  # all kinds of counts occur


def vars_of(rules: MergeRules) -> tuple:
    return rules.overlap, rules.scores, rules.stuff_areas
