"""If a loss or a weight is not finite, the run ends before it is saved."""

import math

import pytest
from detectron2.engine import HookBase

from ocr_panoptic.checkpoint import last_checkpoint
from train_net import Trainer, setup

pytestmark = pytest.mark.slow


class Spoiling(HookBase):
    """A hook that spoils a weight before, or after, the step of an iteration."""

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


@pytest.fixture
def spoiled(tiny_data, short_args, monkeypatch):
    def make(spoiling: Spoiling, *opts: object) -> str:
        trainer = Trainer(setup(short_args("TEST.EVAL_PERIOD", 0, *opts))[0])
        trainer.resume_or_load(False)
        trainer.register_hooks([spoiling])
        trainer._hooks.insert(0, trainer._hooks.pop())  # before the checkpoints
        monkeypatch.setattr(trainer, "test", lambda *_: pytest.fail("it is evaluated"))
        with pytest.raises(FloatingPointError) as error:
            trainer.train()
        return str(error.value)

    return make


def test_weights_that_are_not_finite_are_not_saved(spoiled, tmp_path):
    """Weights are checked even if no loss is NaN, because such a file could not be resumed."""
    message = spoiled(Spoiling(math.inf, after=2))
    assert "Training diverged by iteration 2: sem_seg_head.refined_pred" in message
    last = last_checkpoint(tmp_path / "run")
    assert last.endswith("model_0000001.pth") and f"complete checkpoint: {last}. Try" in message


@pytest.mark.parametrize(
    "iterations, optimizer, amp", [(4, "SGD", False), (400, "AdamW", True), (400, "SGD", False)]
)
def test_a_loss_that_is_nan_ends_the_run(spoiled, tmp_path, iterations, optimizer, amp):
    """The run ends before weights are saved, even if losses are rarely gathered."""
    opts = ("SOLVER.MAX_ITER", iterations, "SOLVER.OPTIMIZER", optimizer, "SOLVER.AMP.ENABLED", amp)
    message = spoiled(Spoiling(math.nan, before=3), *opts, "SOLVER.CHECKPOINT_PERIOD", 2)
    expected = (
        "Loss became infinite or NaN at iteration=3" if iterations == 4 else "Training diverged by"
    )
    assert expected in message
    assert last_checkpoint(tmp_path / "run").endswith("model_0000001.pth")
