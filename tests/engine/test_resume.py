"""A run that is interrupted and resumed is the run that is not."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from ocr_panoptic.engine import Trainer, load_config

from .conftest import CONFIGS

CONFIG = CONFIGS / "quick_schedules/semantic_ocr_R_18_scenes.yaml"


def train(folder: Path, data: list[dict], stop: int, *opts: str, resume: bool = False) -> dict:
    """
    Train up to iteration ``stop`` of 6, on the same images in every iteration.

    Returns:
        the content of the checkpoint, and the learning rate of the last step as "lr"
    """

    class OneBatch(Trainer):
        @classmethod
        def build_train_loader(cls, cfg):
            return [data] * 6

    settings = [
        *("OUTPUT_DIR", str(folder), "MODEL.DEVICE", "cpu", "DATASETS.TEST", "()"),
        *("MODEL.SEM_SEG_HEAD.NUM_CLASSES", "4", "SOLVER.IMS_PER_BATCH", "2"),
        *("MODEL.OCR.DROPOUT", "0.0", "MODEL.SEM_SEG_HEAD.COARSE_DROPOUT", "0.0"),
        *("MODEL.OCR.NORM", "BN", "MODEL.TIMM.NORM", "BN", "MODEL.RESNETS.NORM", "BN"),
        *("SOLVER.MAX_ITER", "6", "SOLVER.STEPS", "()", "SOLVER.WARMUP_ITERS", "4"),
        *opts,
    ]
    torch.manual_seed(0)
    trainer = OneBatch(load_config(str(CONFIG), settings))
    trainer.resume_or_load(resume)
    trainer.max_iter = stop
    trainer.train()
    state = torch.load(folder / "model_final.pth", weights_only=True)
    return {**state, "lr": trainer.optimizer.param_groups[0]["lr"]}


@pytest.mark.parametrize("opts", [(), ("SOLVER.ACCUMULATION_STEPS", "2")])
def test_resumed_run_equals_the_uninterrupted_one(tmp_path, batch, opts):
    """Weights, statistics, momentum, learning rate, schedule and iteration."""
    data = batch(2)
    whole = train(tmp_path / "whole", data, 6, *opts)
    half = train(tmp_path / "parts", data, 3, *opts)
    resumed = train(tmp_path / "parts", data, 6, *opts, resume=True)
    assert half["iteration"] == 2 and resumed["iteration"] == whole["iteration"] == 5
    assert resumed["lr"] == whole["lr"] != half["lr"]
    momentum = whole["trainer"]["_trainer"]["optimizer"]["state"]
    assert any(buffer["momentum_buffer"].abs().max() > 0 for buffer in momentum.values())
    assert resumed["trainer"]["hooks"] == whole["trainer"]["hooks"]  # the schedule's state
    resumed_optimizer = resumed["trainer"]["_trainer"]["optimizer"]
    assert_close(resumed_optimizer["state"], momentum, rtol=1e-5, atol=1e-7)
    assert_close(resumed["model"], whole["model"], rtol=1e-5, atol=1e-7)
