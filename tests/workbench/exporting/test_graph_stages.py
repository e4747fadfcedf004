"""The stages of a file around its network, in onnxruntime: equal to Pillow and to the merge."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from detectron2.data import transforms as T
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.modeling.postprocessing import detector_postprocess
from detectron2.structures import Boxes, Instances
from onnxscript.rewriter.pattern import RewriteRule
from PIL import Image

from ocr_panoptic.data.image_input import ChannelInput
from ocr_panoptic.modeling.panoptic_merge import MergeRules, merge_panoptic
from ocr_panoptic.workbench.exporting.stages import merge_stage, resize_stage

generator = np.random.default_rng(0)


def runner(stage: ir.Model) -> Callable[[dict], dict]:
    session = onnxruntime.InferenceSession(ir.to_proto(stage).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "augmentation",
    [
        T.ResizeShortestEdge(37, 1333),
        T.ResizeShortestEdge(53, 71, interp=Image.BICUBIC),
        T.ResizeShortestEdge(0, 8192, interp=Image.BICUBIC),
        T.Resize((33, 45), Image.BICUBIC),
    ],
)
def test_resizing_equals_pillows(augmentation):
    """Every value is equal to that of test images, including Pillow's rounding."""
    run = runner(resize_stage(T.AugmentationList([augmentation])))
    sizes = (48, 64), (97, 31), (50, 201), (1, 3), (37, 37)
    for size in [*sizes, *generator.integers(1, 150, (20, 2))]:
        image = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        inputs, found = ChannelInput(image), run({"image": image})
        augmentation(inputs)
        assert np.array_equal(found["resized"], inputs.image)
        assert found["size"].tolist() == list(size)


def divided_as_floats(stage: ir.Model) -> ir.Model:
    """Return the stage as runtimes without a division of int32 run it: in float32, then cut."""

    def quotient(op, a, b):
        whole = op.Div(op.Cast(a, to=ir.DataType.FLOAT), op.Cast(b, to=ir.DataType.FLOAT))
        return op.Cast(whole, to=ir.DataType.INT32)

    rule = RewriteRule(
        lambda op, a, b: op.Div(a, b), quotient, lambda _, a, b: b.dtype == ir.DataType.INT32
    )
    assert rule.apply_to_model(stage) == 2  # one division for rows, one for columns
    return stage


@pytest.mark.slow
def test_resizing_with_a_rounded_quotient():
    """If float32 rounds a quotient up, the result must not be 1 above Pillow's."""
    augmentation, random = T.ResizeShortestEdge(37, 1333), np.random.default_rng(0)
    run = runner(divided_as_floats(resize_stage(T.AugmentationList([augmentation]))))
    for size in [(48, 64), (97, 31), (50, 201)]:
        inputs = ChannelInput(random.integers(0, 256, (*size, 3), dtype=np.uint8))
        found = run({"image": inputs.image})["resized"]
        augmentation(inputs)
        assert np.array_equal(found, inputs.image)


def test_another_resizing_cannot_be_exported():
    for given in T.ResizeShortestEdge((37, 53)), T.RandomFlip(), T.Resize((8, 8), Image.NEAREST):
        with pytest.raises(ValueError, match="test images in this way cannot be exported"):
            resize_stage(given)


def random_prediction(seed: int) -> dict:
    """Return overlapping instances (some flat or empty), and labels (some rare)."""
    random = np.random.default_rng(seed)
    count = seed % 8
    starts = random.uniform(0, 25, (count, 2))
    boxes = np.concatenate([starts, starts + random.uniform(1, 15, (count, 2))], axis=1)
    boxes[random.random(count) < 0.1, 2] = 0.0
    masks = random.random((count, 14, 14)) * random.choice([0.4, 1.0, 1.5], (count, 1, 1))
    return {
        "labels": random.choice([0, 1, 1, 1, 2, 4], (30, 40)).astype(np.int32),
        "boxes": boxes.clip(0, [40, 30, 40, 30]).astype(np.float32),
        "scores": -np.sort(-random.random(count).astype(np.float32)),
        "classes": random.integers(0, 3, count),
        "masks": masks.astype(np.float32),
    }


def pasted(prediction: dict) -> tuple[Instances, torch.Tensor]:
    """Return instances and labels in the form that Detectron2 merges."""
    found = {name: torch.tensor(values) for name, values in prediction.items()}
    instances = Instances((30, 40), pred_boxes=Boxes(found["boxes"]), scores=found["scores"])
    instances.pred_classes, instances.pred_masks = found["classes"], found["masks"][:, None]
    return detector_postprocess(instances, 30, 40), found["labels"].long()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(0.3, 0, 0.2), (0.3, 100, 0.2), None])
def test_merge_equals_detectron2_or_ours_with_limits_by_class(limits):
    rules = MergeRules(0.5, (0.1, 0.5, 1.1), (0.0, 100.5, 50.0, 0.0, float("inf")))
    if limits:
        rules = MergeRules(limits[0], limits[2:] * 3, limits[1:2] * 5)
    run, things = runner(merge_stage(rules)), 0
    for seed in range(60):
        prediction = random_prediction(seed)
        merge = combine_semantic_and_instance_outputs if limits else merge_panoptic
        instances, labels = pasted(prediction)
        ids, segments = merge(instances, labels, *(limits or [rules]))
        found = run(prediction)
        assert np.array_equal(found["ids"], ids.numpy())
        assert [s["id"] for s in segments] == [*range(1, len(segments) + 1)]
        assert found["segment_isthing"].tolist() == [s["isthing"] for s in segments]
        assert found["segment_classes"].tolist() == [s["category_id"] for s in segments]
        assert found["segment_scores"].tolist() == [s.get("score", 0.0) for s in segments]
        for segment, box in zip(segments, found["segment_boxes"], strict=True):
            if segment["isthing"]:
                expected = instances.pred_boxes.tensor[segment["instance_id"]]
                assert np.array_equal(box, expected.numpy())
                things += 1
    assert things > 20


def full_masks(boxes: list = (), scores: list = (), labels: list = (0,)) -> dict:
    """Return full masks in boxes over 8x8 pixels, whose columns cycle through labels."""
    count = len(scores)
    return {
        "labels": np.resize(np.array(labels, np.int32), (8, 8)),
        "boxes": np.array(boxes, np.float32).reshape(count, 4),
        "scores": np.array(scores, np.float32),
        "classes": np.zeros(count, np.int64),
        "masks": np.ones((count, 4, 4), np.float32),
    }


ONE, TWO = [[1, 1, 6, 6]], [[0, 0, 4, 4], [2, 0, 6, 4]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "prediction, rules, count",
    [
        # float32(0.35) is below 0.35, float32(0.3) above 0.3: Python compares them as float64.
        (full_masks(ONE, [0.35]), MergeRules(0.5, (0.35,), (0.0,)), 0),
        (full_masks(ONE, [0.3]), MergeRules(0.5, (0.3,), (0.0,)), 1),
        # half of the second instance is taken
        (full_masks(TWO, [0.9, 0.8]), MergeRules(0.5, (0.5,), (0.0,)), 2),
        (full_masks(TWO, [0.9, 0.8]), MergeRules(0.49, (0.5,), (0.0,)), 1),
        # stuff of exactly the least area is a segment, as in Detectron2
        (full_masks(labels=[0, 1]), MergeRules(0.5, (0.5,), (0.0, 32)), 1),
        (full_masks(labels=[0, 1]), MergeRules(0.5, (0.5,), (0.0, 33)), 0),
    ],
)
def test_at_the_limits(prediction, rules, count):
    assert len(runner(merge_stage(rules))(prediction)["segment_scores"]) == count
