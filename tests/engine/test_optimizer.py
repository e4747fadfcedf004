"""SOLVER.HEAD_LR_FACTOR, in both architectures."""

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from detectron2.solver import build_optimizer as detectron2_optimizer
from tiny_runs import SEMANTIC_CONFIG
from torch import nn

from ocr_panoptic.engine import Trainer, load_config


@pytest.fixture(params=["panoptic", "semantic"])
def cfg(request, small_cfg) -> CfgNode:
    if request.param == "panoptic":
        return small_cfg()
    norms = [arg for part in ("OCR", "TIMM") for arg in (f"MODEL.{part}.NORM", "BN")]
    opts = ["MODEL.DEVICE", "cpu", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", "4", *norms]
    return load_config(str(SEMANTIC_CONFIG), opts)


def of_each_parameter(model: nn.Module, optimizer: torch.optim.Optimizer, key: str) -> dict:
    values = {id(p): group[key] for group in optimizer.param_groups for p in group["params"]}
    return {name: values[id(p)] for name, p in model.named_parameters() if p.requires_grad}


def test_rates_of_backbone_and_head(cfg):
    """Hand-worked; biases have their factor too, and norms keep their decay."""
    cfg.SOLVER.BASE_LR, cfg.SOLVER.HEAD_LR_FACTOR, cfg.SOLVER.BIAS_LR_FACTOR = 0.5, 10.0, 2.0
    cfg.SOLVER.WEIGHT_DECAY, cfg.SOLVER.WEIGHT_DECAY_NORM = 0.25, 0.125
    model = build_model(cfg)
    optimizer = Trainer.build_optimizer(cfg, model)
    rates = of_each_parameter(model, optimizer, "lr")
    for name, rate in rates.items():
        expected = 0.5 if name.startswith("backbone.") else 5.0
        assert rate == (2 * expected if name.endswith(".bias") else expected), name
    assert {rate for name, rate in rates.items() if name.endswith("weight")} == {0.5, 5.0}
    assert set(of_each_parameter(model, optimizer, "weight_decay").values()) == {0.25, 0.125}
    scheduler = Trainer.build_lr_scheduler(cfg, optimizer)  # multiplies each group's own rate
    first = {group["lr"] / group["initial_lr"] for group in optimizer.param_groups}
    assert len(first) == 1 and len(scheduler.base_lrs) > 2


def test_factor_1_is_detectron2s_optimizer(cfg):
    cfg.SOLVER.WEIGHT_DECAY_BIAS = 0.0
    cfg.SOLVER.CLIP_GRADIENTS.ENABLED = True
    model = build_model(cfg)
    ours, theirs = Trainer.build_optimizer(cfg, model), detectron2_optimizer(cfg, model)
    assert ours.state_dict() == theirs.state_dict()
    assert ours.__class__.__name__ == theirs.__class__.__name__ != "SGD"


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_no_factor(cfg, factor):
    cfg.SOLVER.HEAD_LR_FACTOR = factor
    with pytest.raises(ValueError, match=f"SOLVER.HEAD_LR_FACTOR is {factor}; it is a number abov"):
        Trainer.build_optimizer(cfg, nn.Linear(1, 1))


def test_steps_from_the_end_on_have_no_effect(caplog):
    """Detectron2 leaves out those above MAX_ITER, and fails where one is MAX_ITER."""
    cfg = load_config("", ["SOLVER.MAX_ITER", "9", "SOLVER.STEPS", "(3, 9, 20)"])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=cfg.SOLVER.BASE_LR)
    cfg.SOLVER.WARMUP_ITERS = 0
    scheduler = Trainer.build_lr_scheduler(cfg, optimizer)
    rates = [scheduler.get_last_lr()[0]]
    for _ in range(8):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert rates == pytest.approx([1e-3] * 3 + [1e-4] * 6)
    assert (
        "SOLVER.STEPS is (3, 9, 20): those from SOLVER.MAX_ITER 9 on have no effect" in caplog.text
    )
