"""A stage of training that follows one on data with other classes (Mapillary, then Cityscapes)."""

import pytest
import torch
from detectron2.modeling import build_model

from ocr_panoptic.checkpoint import SafeCheckpointer
from support.segmentors import make_cfg


def build(num_classes: int, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build_model(make_cfg("MODEL.SEM_SEG_HEAD.NUM_CLASSES", num_classes))


@pytest.mark.slow
def test_all_but_the_classifiers_are_taken_along(tmp_path):
    first, second = build(65, seed=0), build(19, seed=1)
    started = {name: value.clone() for name, value in second.state_dict().items()}
    torch.save({"model": first.state_dict()}, tmp_path / "model_final.pth")
    checkpointer = SafeCheckpointer(second, min_share=1.0)
    checkpointer.load(str(tmp_path / "model_final.pth"))
    classifiers = {
        f"sem_seg_head.{part}.{value}"
        for part in ("refined_predictor", "coarse_predictor")
        for value in ("weight", "bias")
    }
    for name, value in second.state_dict().items():
        expected = started[name] if name in classifiers else first.state_dict()[name]
        assert torch.equal(value, expected), name
    assert checkpointer.fit.faults.keys() == classifiers
