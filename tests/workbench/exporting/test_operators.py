"""The operators that PyTorch's exporter lacks, in onnxruntime."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling.poolers import ROIPooler
from detectron2.structures import Boxes
from torch import Tensor, nn

from ocr_panoptic.workbench.exporting.instances import pool
from ocr_panoptic.workbench.exporting.operators import TRANSLATIONS, confident_labels, nms

OPTIONS = {"custom_translation_table": TRANSLATIONS, "verbose": False}
DYNAMIC_SIDES = (2, 3), (0, 1), (), (1,), (2,)  # of each input of Both


class Both(nn.Module):
    def forward(
        self, logits: Tensor, image: Tensor, size: Tensor, boxes: Tensor, scores: Tensor
    ) -> tuple[Tensor, ...]:
        return (
            *confident_labels(logits, image.permute(2, 0, 1), image, size, False),
            *confident_labels(logits, image.permute(2, 0, 1), image, size, True),
            nms(boxes, scores, 0.3, 0.2, 5),
            nms(boxes, scores, 0.3, -1e30, -1),
            F.adaptive_avg_pool2d(logits, 3),
        )


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> onnxruntime.InferenceSession:
    path = tmp_path_factory.mktemp("onnx") / "operators.onnx"
    shapes = [dict.fromkeys(sides, torch.export.Dim.DYNAMIC) for sides in DYNAMIC_SIDES]
    program = torch.export.export(Both(), example(0), dynamic_shapes=shapes, strict=False)
    names = [f"input_{i}" for i in range(5)]
    torch.onnx.export(program, input_names=names, **OPTIONS).save(path)
    return onnxruntime.InferenceSession(path)


def example(seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    h, w, count = 5 + seed, 7 + 2 * seed, 11 + 3 * seed
    corners = 30 * torch.rand(2, count, 2, 2, generator=generator)
    boxes = torch.cat([corners.amin(dim=2), corners.amax(dim=2)], dim=2)
    scores = torch.rand(2, 3, count, generator=generator)
    scores[0, 1] = -torch.inf
    return (
        4 * torch.randn(1, 6, h, w, generator=generator),
        torch.zeros(8 * h, 8 * w, 3),
        torch.tensor([4 * h + 1, 9 * w]),
        boxes,
        scores,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_equal_in_onnxruntime(exported, seed):
    inputs = example(seed)
    feeds = {f"input_{i}": tensor.numpy() for i, tensor in enumerate(inputs)}
    for found, expected in zip(exported.run(None, feeds), Both()(*inputs), strict=True):
        if expected.dtype.is_floating_point:
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
        else:
            assert np.array_equal(found, expected.numpy())


def test_no_box_remains():
    boxes, scores = torch.rand(1, 4, 4), torch.zeros(1, 2, 4)
    assert nms(boxes, scores, 0.5, 0.1, 10).shape == (0, 3)


class Pooled(nn.Module):
    def __init__(self, kind: str, ratio: int):
        super().__init__()
        self.pooler = ROIPooler(4, (1 / 4, 1 / 8), ratio, kind)

    def forward(self, fine: Tensor, coarse: Tensor, boxes: Tensor) -> Tensor:
        return pool(self.pooler, [fine, coarse], boxes)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ratio"), [("ROIAlignV2", 0), ("ROIAlign", 2)])
def test_boxes_are_pooled_as_by_detectron2(tmp_path, kind, ratio):
    torch.manual_seed(0)
    sides = (30, 42), (180, 180), (9, 9), (100, 100), (0, 5)  # the fourth lies between two levels
    boxes = torch.tensor([[3.0, 5.0, 3.0 + w, 5.0 + h] for w, h in sides])
    corners = torch.tensor([280.0, 220.0]) * torch.rand(30, 2, 2) - 10  # some outside the map
    boxes = torch.cat([boxes, torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)])
    inputs = torch.rand(1, 3, 48, 64), torch.rand(1, 3, 24, 32), boxes
    dynamic = torch.export.Dim.DYNAMIC
    shapes = [{2: dynamic, 3: dynamic}] * 2 + [{0: dynamic}]
    pooled = Pooled(kind, ratio)
    program = torch.export.export(pooled, inputs, dynamic_shapes=shapes, strict=False)
    torch.onnx.export(program, input_names=["p2", "p3", "boxes"], **OPTIONS).save(
        tmp_path / "p.onnx"
    )
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    for h, w, count in ((24, 32, len(boxes)), (30, 20, 1), (24, 32, 0)):
        maps = [torch.rand(1, 3, 2 * h, 2 * w), torch.rand(1, 3, h, w)]
        feeds = {"p2": maps[0].numpy(), "p3": maps[1].numpy(), "boxes": boxes[:count].numpy()}
        expected = pooled.pooler(maps, [Boxes(boxes[:count])])
        np.testing.assert_allclose(session.run(None, feeds)[0], expected.numpy(), atol=2e-5)
        assert torch.equal(pooled(*maps, boxes[:count]), expected)
