"""The operators that PyTorch's exporter lacks, and operators in 8 bits, in onnxruntime."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
import torchvision
from detectron2.modeling.poolers import ROIPooler
from detectron2.structures import Boxes
from torch import Tensor, nn

from ocr_panoptic.workbench.exporting.instances import pool
from ocr_panoptic.workbench.exporting.onnx_file import quantized
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


def test_each_box_is_pooled_from_its_level(monkeypatch):
    """This holds even if boxes of size 0, which replace boxes of other levels, pool to NaN."""
    sides = (30, 42), (180, 180), (9, 9), (100, 100)  # the last box lies between two levels
    boxes = torch.tensor([[3.0, 5.0, 3.0 + w, 5.0 + h] for w, h in sides])
    maps = [torch.rand(1, 3, side, side) for side in (64, 32)]
    pooler = ROIPooler(4, (1 / 4, 1 / 8), 0, "ROIAlignV2")
    expected, roi_align = pooler(maps, [Boxes(boxes)]), torchvision.ops.roi_align

    def of_any_size(features: Tensor, rois: Tensor, *options: object) -> Tensor:
        pooled = roi_align(features, rois, *options)
        return torch.where((rois[:, 3] > rois[:, 1])[:, None, None, None], pooled, torch.nan)

    monkeypatch.setattr("torchvision.ops.roi_align", of_any_size)
    assert torch.allclose(pool(pooler, maps, boxes), expected)


@pytest.mark.slow
def test_weights_of_8_bits():
    """The result is off by a few steps of 1/255 and never equal, and the file is smaller."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(32)
    norm.running_var.fill_(4.0)
    layers = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1, bias=False), norm, nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.Linear(10, 200)),
    ).eval()

    class Labelled(nn.Module):
        """The body of a loop also uses the logits."""

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = layers(x)
            return y, *confident_labels(y, x, x[0].permute(1, 2, 0), torch.tensor([9, 11]), False)

    x = torch.randn(1, 3, 8, 12)
    model = torch.onnx.export(Labelled().eval(), (x,), input_names=["x"], **OPTIONS).model
    files = [ir.to_proto(m).SerializeToString() for m in (model, quantized(model))]
    onnx.checker.check_model(onnx.load_from_string(files[1]))
    whole, found = (onnxruntime.InferenceSession(f).run(None, {"x": x.numpy()})[0] for f in files)
    np.testing.assert_allclose(whole, layers(x).detach().numpy(), atol=1e-5)
    assert 1e-4 < np.abs(found - whole).max() / np.abs(whole).max() < 0.02
    assert len(files[1]) < 0.5 * len(files[0])
