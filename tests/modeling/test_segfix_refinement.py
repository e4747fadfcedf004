"""Refined outputs of a model: moved, unchanged and removed parts."""

import numpy as np
import pytest
import torch
from detectron2.evaluation.evaluator import inference_context
from detectron2.structures import Boxes, Instances
from torch import Tensor, nn

from ocr_panoptic.formats.offsets import DIRECTIONS
from ocr_panoptic.modeling.inference_output import InferenceOutput
from ocr_panoptic.segfix.refinement import RefinedModel, refine_output

IDS = torch.tensor([[1, 1, 2, 3], [1, 1, 2, 2]], dtype=torch.int32)
# Each pixel of the right half takes the value of its left neighbour.
SOURCES = torch.tensor([[0, 1, 1, 2], [4, 5, 5, 6]])
MOVED = [[1, 1, 1, 2], [1, 1, 1, 2]]


def output() -> dict:
    segments = [
        {"id": 1, "isthing": True, "score": 0.5, "category_id": 0, "instance_id": 0},
        {"id": 2, "isthing": False, "category_id": 1, "area": 3},
        {"id": 3, "isthing": False, "category_id": 2, "area": 1},
    ]
    instances = Instances((2, 4))
    instances.pred_masks = torch.stack([IDS == 1, IDS == 3])
    instances.pred_boxes = Boxes(torch.tensor([[0.0, 0, 2, 2], [3, 0, 4, 1]]))
    return {
        "labels": IDS.long(),
        "confidence": IDS / 4,
        "sem_seg": torch.stack([IDS.float(), -IDS.float()]),
        "panoptic_seg": (IDS, segments),
        "instances": instances,
    }


def test_all_maps_move():
    found = refine_output(output(), SOURCES)
    ids, segments = found["panoptic_seg"]
    assert ids.tolist() == found["labels"].tolist() == MOVED and ids.dtype == torch.int32
    assert (4 * found["confidence"]).tolist() == MOVED
    assert found["sem_seg"][1].tolist() == [[-1.0, -1, -1, -2]] * 2
    assert [s["id"] for s in segments] == [1, 2] and segments[1]["area"] == 2
    assert "area" not in segments[0] and segments[0]["score"] == 0.5
    masks = found["instances"].pred_masks
    assert masks[0].tolist() == [[True, True, True, False]] * 2 and not masks[1].any()
    boxes = [o["instances"].pred_boxes.tensor for o in (found, output())]
    assert len(boxes[0]) == 2 and torch.equal(*boxes)
    none = output()
    none["instances"] = none["instances"][[]]
    assert refine_output(none, SOURCES)["instances"].pred_masks.shape == (0, 2, 4)


def test_parts_are_moved_only_on_request():
    whole, asked = output(), []

    def part(key):
        return lambda _: asked.append(key) or whole[key]

    found = refine_output(InferenceOutput({key: part(key) for key in whole}), SOURCES)
    assert asked == [] and sorted(found) == sorted(whole)
    assert torch.equal(found["sem_seg"], refine_output(whole, SOURCES)["sem_seg"])
    assert asked == ["sem_seg"]


class Known(nn.Module):
    def __init__(self, outputs: dict[str, Tensor]):
        super().__init__()
        self.outputs = outputs

    def forward(self, inputs: list[dict]) -> list[dict]:
        self.seen = inputs
        return [self.outputs] * len(inputs)


def test_a_refined_model_scales_the_offsets():
    labels = torch.arange(12).reshape(1, 12)
    near = torch.ones(1, 12, dtype=torch.bool)
    near[0, 6] = False
    left = DIRECTIONS.tolist().index([0, -1])
    segfix = Known({"near_boundary": near, "direction": torch.full((1, 12), left)})
    model = RefinedModel(Known({"labels": labels}), segfix, scale=3)
    (found,) = model([{"image": "theirs", "segfix": {"image": "ours"}}])
    expected = np.maximum(np.arange(12) - 3, 0)
    expected[6] = 6
    assert found["labels"].tolist() == [expected.tolist()]
    assert segfix.seen == [{"image": "ours"}] and model.model.seen[0]["image"] == "theirs"


@pytest.mark.parametrize("is_training", [True, False])
def test_an_evaluation_restores_the_mode_of_the_model(is_training):
    """With TEST.OPTIMIZED False, the model in training itself is refined."""
    model = Known({}).train(is_training)
    with inference_context(RefinedModel(model, Known({}).eval(), scale=2)):
        assert not model.training
    assert model.training == is_training
