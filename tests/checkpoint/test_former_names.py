"""Files of earlier versions, whose heads named their parts otherwise.

``former/*.pth`` were written by commit e84c838: the state dict of a small head of each kind, with
and without region supervision, the order of its parameters, random features, and its logits.
"""

from pathlib import Path

import pytest
import torch
from detectron2.layers import ShapeSpec
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.checkpoint.former_names import rename_former
from ocr_panoptic.layers import OCR
from ocr_panoptic.modeling import ContextSemSegHead, OCRSemSegFPNHead
from ocr_panoptic.modeling.losses import SemSegCriterion

FORMER = Path(__file__).parent / "former"


class Model(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        shared = dict(
            num_classes=3,
            context=OCR(8, 4, 8, norm="BN", dropout=0.0),
            criterion=SemSegCriterion(num_classes=3),
            ocr_channels=8,
            ocr_norm="BN",
            region_supervision=not name.endswith("unsupervised"),
        )
        if name.startswith("panoptic"):
            shapes = {f"p{i}": ShapeSpec(channels=4, stride=2**i) for i in range(2, 6)}
            own = dict(conv_dims=8, common_stride=4, norm="", ignore_value=255)
            self.sem_seg_head = OCRSemSegFPNHead(shapes, **own, **shared)
        else:
            shapes = {"res4": ShapeSpec(channels=6, stride=8)}
            shapes["res5"] = ShapeSpec(channels=8, stride=8)
            own = dict(in_features=["res5"], coarse_in_features=["res4"], coarse_channels=6)
            self.sem_seg_head = ContextSemSegHead(shapes, **own, **shared)


@pytest.mark.parametrize("path", sorted(FORMER.glob("*.pth")), ids=lambda p: p.stem)
def test_a_former_file_gives_its_logits(path):
    model, content = Model(path.stem).eval(), torch.load(path, weights_only=True)
    SafeCheckpointer(model, strict=True).load(str(path), checkpointables=[])
    with torch.no_grad():
        coarse, refined = model.sem_seg_head.layers(content["features"])
    torch.testing.assert_close(coarse, content["coarse"], rtol=0, atol=1e-6)
    torch.testing.assert_close(refined, content["refined"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", sorted(FORMER.glob("*.pth")), ids=lambda p: p.stem)
def test_parameters_keep_their_order(path):
    """An optimizer's state knows them by it, so a former run can be resumed."""
    former = dict.fromkeys(torch.load(path, weights_only=True)["parameters"])
    names = [name for name, _ in Model(path.stem).named_parameters()]
    assert list(rename_former(former)) == names


def test_files_of_this_version_and_of_detectron2_stay_as_they_are():
    ours = {"sem_seg_head.coarse_predictor.bias": 0, "sem_seg_head.refined_predictor.bias": 1}
    detectron2 = {"sem_seg_head.predictor.bias": 0, "backbone.ocr.x": 1, "sem_seg_head.p2.0.w": 2}
    panoptic = {"sem_seg_head.predictor.bias": 0, "sem_seg_head.refined_predictor.bias": 1}
    for weights in (ours, detectron2, panoptic):
        assert list(rename_former(weights)) == list(weights)
