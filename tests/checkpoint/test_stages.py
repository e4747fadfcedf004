"""A stage of training that follows one on data with other classes (Mapillary, then Cityscapes)."""

from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.engine import load_config

CONFIG = Path(__file__).parents[2] / "configs/quick_schedules/semantic_ocr_R_18_scenes.yaml"


def build(num_classes: int, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    options = ["MODEL.DEVICE", "cpu", "MODEL.TIMM.NORM", "BN", "MODEL.OCR.NORM", "BN"]
    return build_model(
        load_config(str(CONFIG), [*options, "MODEL.SEM_SEG_HEAD.NUM_CLASSES", str(num_classes)])
    )


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
