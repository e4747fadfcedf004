"""Detectron2's own trainer trains this project's models."""

import itertools

import pytest
import torch
from detectron2.config import get_cfg
from detectron2.engine import DefaultTrainer
from torch import nn

from ocr_panoptic import add_ocr_config
from ocr_panoptic.engine.optimizer import build_optimizer, build_schedule
from ocr_panoptic.engine.step import AccumulatingTrainer
from support.tiny_runs import OCR_CONFIG, TINY, TINY_OCR


class Plain(DefaultTrainer):
    @classmethod
    def build_optimizer(cls, cfg, model):
        return build_optimizer(cfg, model)

    @classmethod
    def build_lr_scheduler(cls, cfg, optimizer):
        return build_schedule(cfg, optimizer)


def test_a_poly_schedule_from_weights_in_a_package(tmp_path, monkeypatch, batch):
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.merge_from_file(str(OCR_CONFIG))
    counts = ["MODEL.ROI_HEADS.NUM_CLASSES", 2, "MODEL.SEM_SEG_HEAD.NUM_CLASSES", 4]
    schedule = ["SOLVER.LR_SCHEDULER_NAME", "WarmupPolyLR", "SOLVER.WARMUP_ITERS", 0]
    schedule += ["SOLVER.MAX_ITER", 2, "SOLVER.BASE_LR", 0.01, "SOLVER.CHECKPOINT_PERIOD", 1]
    clipping = ["SOLVER.CLIP_GRADIENTS.ENABLED", True, "MODEL.OCR.NORM", "BN"]
    address = ["MODEL.WEIGHTS", "package://own_weights", "OUTPUT_DIR", str(tmp_path / "run")]
    cfg.merge_from_list([*TINY, *TINY_OCR, *counts, *schedule, *clipping, *address])
    cfg.merge_from_list(["DATASETS.TEST", "()"])
    monkeypatch.setattr(
        Plain, "build_train_loader", staticmethod(lambda _: itertools.repeat(batch()))
    )
    (tmp_path / "own_weights").mkdir()
    (tmp_path / "own_weights/__init__.py").touch()
    weights = Plain.build_model(cfg).state_dict()
    torch.save({"model": weights}, tmp_path / "own_weights/model.pth")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "run").mkdir()
    trainer = Plain(cfg)
    trainer.resume_or_load(resume=False)
    assert all(torch.equal(v, weights[k]) for k, v in trainer.model.state_dict().items())
    rates, step = [], trainer.optimizer.step

    def recorded() -> None:
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        step()

    monkeypatch.setattr(trainer.optimizer, "step", recorded)
    trainer.train()
    assert rates == pytest.approx([0.01, 0.01 * 0.5**0.9])
    name = "sem_seg_head.refined_predictor.weight"
    assert not torch.equal(trainer.model.state_dict()[name], weights[name])
    resumed = Plain(cfg)
    resumed.resume_or_load(resume=True)
    assert resumed.start_iter == 2


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_only_the_own_step_clips_instead_of_the_optimizer(name):
    """The gradient is 100 for each value; SOLVER.CLIP_GRADIENTS allows 0.5."""
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.SOLVER.OPTIMIZER, cfg.SOLVER.BASE_LR, cfg.SOLVER.MOMENTUM = name, 1.0, 0.0
    cfg.SOLVER.WEIGHT_DECAY = 0.0
    cfg.SOLVER.CLIP_GRADIENTS.ENABLED, cfg.SOLVER.CLIP_GRADIENTS.CLIP_VALUE = True, 0.5
    for own_step, expected in ((False, 0.5), (True, 100.0)):
        optimizer = build_optimizer(cfg, layer := nn.Linear(1, 1), own_step=own_step)
        (100 * layer(torch.ones(1))).sum().backward()
        optimizer.step()
        assert layer.weight.grad.item() == expected


class Loss(nn.Linear):
    def forward(self, batch):
        return {"loss": super().forward(batch).sum()}


def test_the_step_takes_the_arguments_of_detectron2s_step():
    model = Loss(1, 1)
    trainer = AccumulatingTrainer(
        model, itertools.repeat(torch.ones(2, 1)), torch.optim.SGD(model.parameters(), 0.1)
    )
    before = model.bias.item()
    trainer.train(0, 3)
    assert model.bias.item() == pytest.approx(before - 3 * 0.1 * 2)
