"""Losses of all processes in the log; where one is not finite, the run ends before it is saved."""

import math
from types import SimpleNamespace

import pytest
import torch
from detectron2.engine import HookBase
from detectron2.utils import comm
from detectron2.utils.events import EventStorage
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ocr_panoptic.checkpoint import last_checkpoint
from ocr_panoptic.engine import Trainer, loss_log, setup
from ocr_panoptic.engine import trainer as trainer_module
from ocr_panoptic.engine.loss_log import LossLog


class Spoiling(HookBase):
    """Spoils a weight before, or after, the step of an iteration."""

    def __init__(self, value: float, before: int = -1, after: int = -1):
        self.value, self.before, self.after = value, before, after

    def spoil(self):
        self.trainer.checkpointer.model.sem_seg_head.refined_predictor.bias.data[0] = self.value

    def before_step(self):
        if self.trainer.iter == self.before:
            self.spoil()

    def after_step(self):
        if self.trainer.iter == self.after:
            self.spoil()


@pytest.mark.slow
def test_weights_that_are_not_finite_are_not_saved(tiny_data, short_args, tmp_path):
    """Even where no loss has seen them; a file with them could not be resumed from."""
    trainer = Trainer(*setup(short_args("TEST.EVAL_PERIOD", 0)))
    trainer.resume_or_load(False)
    trainer.register_hooks([Spoiling(math.inf, after=2)])
    trainer._hooks.insert(0, trainer._hooks.pop())  # before the checkpoints
    message = "Iteration 2 has broken the model: 1 values of sem_seg_head.refined_predictor.bias "
    with pytest.raises(FloatingPointError, match=message) as error:
        trainer.train()
    assert "The last whole checkpoint is " in str(error.value)
    assert last_checkpoint(tmp_path / "run").endswith("model_0000001.pth")


@pytest.mark.slow
def test_a_loss_that_is_nan_ends_the_run(tiny_data, short_args, tmp_path, monkeypatch):
    """Before its weights are saved, also where losses are looked at now and then: a line of
    progress is not near."""
    monkeypatch.setattr(trainer_module, "log_period", lambda max_iter: 20)
    for period in (1, 100):
        folder = tmp_path / f"run{period}"
        trainer = Trainer(*setup(short_args("OUTPUT_DIR", folder, "TEST.EVAL_PERIOD", 0)))
        trainer._trainer.loss_log = LossLog(period)
        trainer.resume_or_load(False)
        trainer.register_hooks([Spoiling(math.nan, before=3)])
        monkeypatch.setattr(trainer, "test", lambda *_: pytest.fail("it is evaluated"))
        with pytest.raises(FloatingPointError) as error:
            trainer.train()
        message = str(error.value)
        assert "not finite in iteration 3" in message and "loss_sem_seg nan" in message
        assert message.count("/images/") == 2 and "tiny/raw/train" in message
        assert f"The last whole checkpoint is {folder / 'model_0000002.pth'}" in message
        assert not (folder / "model_final.pth").exists()


def test_what_is_logged_does_not_grow(small_cfg, tmp_path, monkeypatch):
    """Detectron2's lines use the last 1000 of each value; its mean is that of all."""
    monkeypatch.setattr(trainer_module, "HISTORY", 3)
    monkeypatch.setattr(Trainer, "build_train_loader", classmethod(lambda cls, cfg: []))
    trainer = Trainer(small_cfg("ocr", "OUTPUT_DIR", str(tmp_path)))
    with EventStorage() as trainer.storage:
        trainer.before_train()
        for i in range(9):
            trainer.storage.put_scalars(cur_iter=i, total_loss=i)
        history = trainer.storage.history("total_loss")
    assert [value for value, _ in history.values()] == [6, 7, 8] and history.global_avg() == 4


def test_the_copy_of_a_loss_from_a_gpu_is_not_waited_for(monkeypatch):
    """A copy to pinned memory, with an event after it, in the stream of that GPU."""
    seen = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "copy" in function.overloadpacket.__name__:
                seen.append(kwargs["non_blocking"])
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=seen.append))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"event of {device}")
    with FakeTensorMode(), Copies():
        LossLog().add(0, ["a"], torch.ones(1, device="cuda:1"), 0.5, ["x.jpg"])
    assert seen == [True, "event of cuda:1"]


def test_losses_of_all_processes(monkeypatch):
    """Both raise where one has a loss that is not finite; the means are logged at once."""

    def exchange(own: list[list[float]]) -> list[list[list[float]]]:
        return [own, [[loss + shift, seconds + 0.25] for loss, seconds in own]]

    monkeypatch.setattr(loss_log, "_gathered", exchange)
    monkeypatch.setattr(comm, "all_gather", lambda said: [said, "a inf\n    of the images x.jpg"])
    shift, log = 2.0, LossLog(period=3)
    with EventStorage() as storage:
        for iteration in range(7):
            log.add(iteration, ["a"], torch.tensor([float(iteration)]), 0.5, ["y.jpg"])
            histories = storage.histories()
            assert len(histories["total_loss"].values() if iteration > 2 else []) == (
                3 * (iteration // 3)
            )
        assert [value for value, _ in storage.history("total_loss").values()] == [1, 2, 3, 4, 5, 6]
        assert storage.history("data_time").latest() == 0.75
        assert storage.history("rank_data_time").latest() == 0.5
        shift = math.inf
        with pytest.raises(FloatingPointError) as error:
            for iteration in range(7, 10):
                log.add(iteration, ["a"], torch.ones(1), 0.5, ["y.jpg"])
    expected = ["process 0: a 6", "process 1: a inf", "of the images x.jpg"]
    assert [line.strip() for line in str(error.value).splitlines()[1:]] == expected
    assert "iteration 6" in str(error.value)
