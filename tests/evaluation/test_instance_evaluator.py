"""AP of random instances against pycocotools, which has the same truth as an instance JSON."""

import math

import numpy as np
import pytest
import torch
from detectron2.evaluation import COCOEvaluator
from detectron2.structures import BitMasks, Instances

from ocr_panoptic.evaluation.instance_evaluator import PanopticInstanceEvaluator
from support import panoptic_samples as samples_of

pytestmark = pytest.mark.usefixtures("clean_catalog")

NAME = "random_instances"
CATEGORIES = samples_of.make_categories(4, 2)
TASKS = ("bbox", "segm")
SIZE = (150, 160)  # holds instances that are small, medium and large for COCO


def instances_of(rng: np.random.Generator, sample: samples_of.Sample) -> Instances:
    """The predicted segments, some twice, with scores of one decimal: many are equal. The last
    class of things is never predicted."""
    masks, classes = [], []
    for segment in sample.predicted_segments:
        for _ in range(rng.integers(1, 3)):
            masks.append(np.roll(sample.predicted_ids == segment["id"], rng.integers(3)))
            classes.append(
                int(rng.integers(3)) if rng.random() < 0.5 else segment["category_id"] % 3
            )
    found = Instances(SIZE)
    found.pred_masks = torch.tensor(np.array(masks).reshape(-1, *SIZE))
    found.pred_boxes = BitMasks(found.pred_masks).get_bounding_boxes()
    found.pred_classes = torch.tensor(classes, dtype=torch.int64)
    found.scores = torch.tensor(rng.random(len(classes)).round(1))
    return found


@pytest.fixture(params=["integers", "texts"])
def data(request, tmp_path):
    """Image ids and instances of a registered data set with crowds; images have ids of one kind."""
    rng = np.random.default_rng(0)
    samples = samples_of.random_samples(rng, 30, CATEGORIES, SIZE)
    assert any(s["iscrowd"] for sample in samples for s in sample.segments)
    for sample in samples if request.param == "texts" else ():
        sample.image_id = f"ADE_{sample.image_id}"
    samples_of.register(NAME, tmp_path, CATEGORIES, samples)
    return [({"image_id": s.image_id}, {"instances": instances_of(rng, s)}) for s in samples]


def evaluate(evaluator: COCOEvaluator, data: list[tuple[dict, dict]]) -> dict:
    evaluator.reset()
    for record, output in data:
        evaluator.process([record], [output])
    return evaluator.evaluate()


def test_equals_pycocotools(data):
    ours = evaluate(PanopticInstanceEvaluator(NAME, TASKS), data)
    theirs = evaluate(COCOEvaluator(NAME, tasks=TASKS, use_fast_impl=False), data)
    np.testing.assert_equal(ours, theirs)  # every metric and class, both tasks; NaN where NaN
    assert 0 < ours["segm"]["AP"] < 100
    assert not any(math.isnan(ours["bbox"][f"AP{size}"]) for size in "sml")


def test_nothing_is_predicted(data):
    nothing = [(record, {"instances": output["instances"][:0]}) for record, output in data]
    results = evaluate(PanopticInstanceEvaluator(NAME, TASKS), nothing)
    assert math.isnan(results["bbox"]["AP"]) and math.isnan(results["segm"]["AP"])
