"""An evaluation in training is that of the model which the main process saves."""

import torch
import torch.distributed as dist
from detectron2.engine import DefaultTrainer
from torch import nn

from ocr_panoptic.engine import Trainer


def test_running_statistics_are_the_main_processes(small_cfg, monkeypatch):
    """Two processes: each buffer comes from process 0 before anything is evaluated."""
    order = []

    def broadcast(tensor: torch.Tensor, src: int) -> None:
        assert src == 0
        order.append("buffer")
        tensor.fill_(7)

    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    monkeypatch.setattr("detectron2.utils.comm.is_main_process", lambda: False)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    monkeypatch.setattr(DefaultTrainer, "test", lambda *_: order.append("evaluation"))
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    Trainer.test(small_cfg(), model)
    assert order == ["buffer"] * 3 + ["evaluation"]
    assert model[1].running_mean.eq(7).all() and model[1].running_var.eq(7).all()
