"""Detectron2's hooks, for a training that may end and go on at any moment."""

import difflib
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.engine import HookBase, hooks
from detectron2.evaluation.testing import flatten_results_dict
from detectron2.utils import comm

from ocr_panoptic.checkpoint import SafeCheckpointer

from .agreement import Poll
from .stopping import Stopped, Stopping

logger = logging.getLogger(__name__)


class Checkpoints(HookBase):
    """
    Saves ``model_<iteration>.pth`` periodically and before each evaluation, which takes long, and
    ``model_final.pth`` after the last iteration. The training goes on while a file is written.

    Args:
        cfg: with the keys SOLVER.CHECKPOINT_PERIOD, CHECKPOINT_MINUTES, CHECKPOINTS_TO_KEEP and
            TEST.EVAL_PERIOD.
    """

    def __init__(self, checkpointer: SafeCheckpointer, cfg: CfgNode):
        self.checkpointer = checkpointer
        periods = cfg.SOLVER.CHECKPOINT_PERIOD, cfg.TEST.EVAL_PERIOD
        self.periods = [period for period in periods if period > 0]
        self.keep = cfg.SOLVER.CHECKPOINTS_TO_KEEP
        self.minutes = cfg.SOLVER.CHECKPOINT_MINUTES
        self._poll = Poll()
        self._saved = -1

    def before_train(self) -> None:
        if comm.is_main_process():
            self.checkpointer.remove_unfinished()
        self._time = time.monotonic()

    def after_step(self) -> None:
        self.checkpointer.look()  # rather than train on until the next one is to be saved
        done = self.trainer.iter + 1
        is_due = done == self.trainer.max_iter or any(done % p == 0 for p in self.periods)
        if self.minutes:
            is_old = time.monotonic() - self._time >= 60 * self.minutes
            # By the number of the file that is old: a late answer may be about the one before.
            number = self._saved + 2
            is_due |= self._poll.largest(number if is_old else 0) == number
        if is_due:
            self.save()

    def save(self, *, wait: bool = False) -> None:
        """Save the iteration that has ended, unless that was done; ``wait`` until it is written,
        as it is after the last iteration. All processes call it."""
        iteration = self.trainer.iter
        if self._saved != iteration:
            self.trainer.check_finite()
            last = iteration + 1 == self.trainer.max_iter
            self.checkpointer.save(
                "model_final" if last else f"model_{iteration:07d}",
                keep=self.keep,
                background=not last,
                iteration=iteration,
            )
            if last:
                folder = Path(self.checkpointer.save_dir)
                logger.info("The trained model is %s", folder / "model_final.pth")
            self._saved, self._time = iteration, time.monotonic()
        if wait:
            self.checkpointer.wait()


class StopOnSignal(HookBase):
    """Saves and ends all processes after the iteration in which one was asked to stop."""

    def __init__(self, stopping: Stopping, checkpoints: Checkpoints):
        self.stopping = stopping
        self.checkpoints = checkpoints

    def after_step(self) -> None:
        number = self.stopping.agreed()
        if number:
            self.checkpoints.save(wait=True)
            comm.synchronize()  # else the launcher ends the one that saves
            logger.info("Stopped by signal %d; --resume goes on from here", number)
            raise Stopped(128 + number)


class Evaluation(hooks.EvalHook):
    """Detectron2's, that is not made after a training that failed in its last iteration, and that
    is made up for where a run ended between checkpoint and evaluation."""

    def before_train(self) -> None:
        start = self.trainer.start_iter
        if self._period > 0 and start % self._period == 0 and 0 < start < self.trainer.max_iter:
            self.trainer.storage.iter = start - 1  # the iteration that it is of
            self._do_eval()
            self.trainer.storage.iter = start

    def after_train(self) -> None:
        if self.trainer.iter >= self.trainer.max_iter:
            super().after_train()


class EarlyEnd(HookBase):
    """
    Ends all processes after an evaluation, when the best one is too long ago: at once where such a
    training is resumed. It follows what evaluates.

    Args:
        best: of the main process, after the evaluation.
        period: iterations between two evaluations.
        patience: evaluations without a higher value.
    """

    def __init__(self, best: "BestModel", period: int, patience: int):
        self.best, self.period, self.patience = best, period, patience

    def before_train(self) -> None:
        self._look(self.trainer.start_iter)

    def after_step(self) -> None:
        self._look(self.trainer.iter + 1)

    def _look(self, done: int) -> None:
        if done % self.period or done == self.trainer.max_iter:
            return
        waited = (done - 1 - self.best.iteration) // self.period
        is_enough = comm.is_main_process() and self.best.iteration >= 0 and waited >= self.patience
        if any(comm.all_gather(is_enough)):
            logger.info(
                "TEST.PATIENCE: %s has not risen in %d evaluations, so the training ends. %s has "
                "its highest value, %g, of iteration %d",
                *(self.best.metric, waited, self.best.path, self.best.value),
                self.best.iteration + 1,
            )
            raise EndedEarly


class EndedEarly(BaseException):
    """A training needs no more iterations."""


class PreciseBN(hooks.PreciseBN):
    """Detectron2's, on the same images each time: what they are does not depend on how often it was
    made in this process."""

    def update_stats(self) -> None:
        self._data_iter = None
        super().update_stats()


class BestModel:
    """
    Keeps the model with the highest value of a metric as ``model_best.pth``, which has the value
    itself, so that it is known whenever the training is resumed.

    Args:
        metric: task/metric, such as panoptic_seg/PQ; with several test sets, data set/task/metric.
    """

    FILE = "model_best"

    def __init__(self, checkpointer: SafeCheckpointer, metric: str):
        self.checkpointer = checkpointer
        self.metric = metric
        self.value = -math.inf
        self.iteration = -1  # that has it

    @property
    def path(self) -> Path:
        return Path(self.checkpointer.save_dir) / f"{self.FILE}.pth"

    def begin_anew(self) -> None:
        """Remove the file of another run, whose value is none to be compared with."""
        self.path.unlink(missing_ok=True)

    def resume(self) -> None:
        """Take the value of the file, if there is one of this metric."""
        if self.path.is_file():
            saved = torch.load(self.path, map_location="cpu", mmap=True, weights_only=True)
            if self.metric in saved.get("best", {}):
                self.value, self.iteration = saved["best"][self.metric], saved["iteration"]

    def update(self, results: Mapping[str, Mapping[str, float]], iteration: int) -> None:
        """
        Args:
            results: of an evaluation; {} in all processes but the main one.
            iteration: the one that it was made after.
        """
        if not comm.is_main_process() or not results:
            return
        metrics = flatten_results_dict(results)
        if self.metric not in metrics:
            close = difflib.get_close_matches(self.metric, metrics, n=5, cutoff=0.3)
            logger.warning(
                "TEST.BEST_CHECKPOINT is %s, which the evaluation does not have (similar: %s); no "
                "best model is kept",
                self.metric,
                ", ".join(close) or "none",
            )
        elif metrics[self.metric] > self.value:
            self.value, self.iteration = float(metrics[self.metric]), iteration
            self.checkpointer.save(
                self.FILE, tag=False, iteration=iteration, best={self.metric: self.value}
            )
            logger.info("%s is the best so far: %g", self.metric, self.value)
