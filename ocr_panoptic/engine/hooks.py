"""Hooks for training runs that can be stopped and resumed at any moment, and the best model."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.engine import HookBase, hooks
from detectron2.evaluation.testing import flatten_results_dict
from detectron2.utils import comm
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ocr_panoptic.checkpoint.checkpointer import SafeCheckpointer
from ocr_panoptic.checkpoint.matching import not_finite

logger = logging.getLogger(__name__)

Tensors = tuple[Tensor, ...] | list[Tensor]


class Averaging(HookBase):
    """
    Keeps an exponential moving average of the weights, for evaluations and checkpoints.

    After each step, average = decay * average + (1 - decay) * model, for weights and buffers.
    Integer buffers (batch counts of batch norms) are copied. ``module`` is the averaged model in
    training mode, so that PreciseBN can update its batch norms.
    """

    def __init__(self, model: nn.Module, decay: float):
        def average(averages: Tensors, values: Tensors, _: object) -> None:  # of one dtype
            if averages[0].is_floating_point():
                torch._foreach_lerp_(averages, values, 1 - decay)
            else:  # PyTorch's own function would average and truncate them
                torch._foreach_copy_(averages, values)

        self._model = model
        self._average = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
        self.module = self._average.module.train().requires_grad_(False)

    def begin(self) -> None:
        """Start the model and the average at the weights that were loaded into ``module``."""
        self._model.load_state_dict(self.module.state_dict())
        self._average.update_parameters(self._model)  # the first update copies the weights

    def after_step(self) -> None:
        self._average.update_parameters(self._model)


class Checkpoints(HookBase):
    """
    Saves the model periodically, before each evaluation, and after the last iteration.

    The files are ``model_<iteration>.pth`` and, at the end, ``model_final.pth``. If a weight is
    infinite or NaN, nothing is saved, and FloatingPointError is raised.
    """

    def __init__(self, checkpointer: SafeCheckpointer, cfg: CfgNode, model: nn.Module):
        self._checkpointer, self._model, self._solver = checkpointer, model, cfg.SOLVER
        periods = cfg.SOLVER.CHECKPOINT_PERIOD, cfg.TEST.EVAL_PERIOD
        self._periods = [period for period in periods if period > 0]
        self._saved = -1

    def before_train(self) -> None:
        self._checkpointer.remove_unfinished()
        self._time = time.monotonic()

    def after_step(self) -> None:
        done = self.trainer.iter + 1
        is_old = 0 < 60 * self._solver.CHECKPOINT_MINUTES <= time.monotonic() - self._time
        if is_old or done == self.trainer.max_iter or any(done % p == 0 for p in self._periods):
            self.save()

    def save(self) -> None:
        """Save a checkpoint after the current iteration, unless the iteration already has one."""
        iteration = self.trainer.iter
        if self._saved == iteration:
            return
        if what := not_finite(self._model.state_dict()):
            raise FloatingPointError(f"Training diverged by iteration {iteration}: {what}.")
        is_last = iteration + 1 == self.trainer.max_iter
        name = "model_final" if is_last else f"model_{iteration:07d}"
        keep = self._solver.CHECKPOINTS_TO_KEEP
        self._checkpointer.save(name, keep=keep, iteration=iteration)
        self._saved, self._time = iteration, time.monotonic()


class Stopped(SystemExit):
    """Raised in every process to end the program after a signal, once the work is saved."""


class StopOnSignal(HookBase):
    """Saves a checkpoint and ends all processes if any process has received SIGTERM or SIGINT."""

    def __init__(self, checkpoints: Checkpoints | None = None):
        self._checkpoints = checkpoints
        self._signal = 0
        self._at_once = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record a SIGTERM or SIGINT in the ``with`` block, instead of ending the process."""
        # Python allows signal handlers only in the main thread.
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        former = {number: signal.signal(number, self._store) for number in numbers}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """End the process without saving if a signal arrives in the ``with`` block."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def agreed_signal(self) -> int:
        """
        Return the number of a signal that at least one process has received, or 0 for no signal.

        All processes must call this method.
        """
        if comm.get_world_size() == 1:
            return self._signal
        found = torch.tensor(self._signal)
        dist.all_reduce(found, dist.ReduceOp.MAX, comm._get_global_gloo_group())
        return int(found)

    def _store(self, number: int, frame: object) -> None:
        if self._at_once:
            raise SystemExit(128 + number)
        self._signal = number

    def after_step(self) -> None:
        if number := self.agreed_signal():
            if self._checkpoints:
                self._checkpoints.save()
            comm.synchronize()  # otherwise the launcher would end the process that still saves
            logger.info("Stopped by signal %d. Continue with --resume", number)
            raise Stopped(128 + number)


class EndedEarly(BaseException):
    """Raised to end the training before its last iteration, without an error."""


class BestModel:
    """
    Keeps the model with the highest value of a metric as ``model_best.pth``.

    The config key TEST.BEST_CHECKPOINT names the metric. The file also stores the value, so that
    a resumed run replaces the file only with a better model.
    """

    def __init__(self, checkpointer: SafeCheckpointer, metric: str):
        self.checkpointer, self.metric = checkpointer, metric
        self.path = Path(checkpointer.save_dir) / "model_best.pth"
        self.value, self.iteration = -math.inf, -1

    def resume(self) -> None:
        """Read the best value of ``self.metric`` so far, if it is stored in ``model_best.pth``."""
        if self.path.is_file():
            saved = torch.load(self.path, map_location="cpu", mmap=True, weights_only=True)
            if self.metric in saved.get("best", {}):
                self.value, self.iteration = saved["best"][self.metric], saved["iteration"]

    def update(self, results: Mapping[str, Mapping[str, float]], iteration: int) -> None:
        """Save the model if ``results`` has a new best value of the metric (main process only)."""
        metrics = flatten_results_dict(results)
        value = float(metrics.get(self.metric, math.nan))
        if math.isnan(value):
            text = "TEST.BEST_CHECKPOINT %s has no value, so no best model is saved. Metrics: %s"
            logger.warning(text, self.metric, ", ".join(metrics) or "none")
        elif value > self.value:
            self.value, self.iteration = value, iteration
            best = {self.metric: value}
            self.checkpointer.save(self.path.stem, tag=False, iteration=iteration, best=best)
            logger.info("New best value of %s: %g", self.metric, value)


class Evaluation(hooks.EvalHook):
    """
    Detectron2's evaluation hook, which can also end the training early.

    - The training ends after TEST.PATIENCE evaluations without a new best value.
    - If a run was stopped between a checkpoint and its evaluation, the resumed run evaluates first.
    - A run that fails in its last iteration is not evaluated.
    """

    def __init__(
        self, period: int, evaluate: Callable[[], dict], best: BestModel | None, patience: int
    ):
        super().__init__(period, evaluate)
        self.best, self.patience = best, patience

    def before_train(self) -> None:
        start = self.trainer.start_iter
        if self._period > 0 and start % self._period == 0 and 0 < start < self.trainer.max_iter:
            self.trainer.storage.iter = start - 1  # the iteration that is evaluated
            self._do_eval()
            self.trainer.storage.iter = start
            self._end_if_too_long(start)

    def after_step(self) -> None:
        super().after_step()
        self._end_if_too_long(self.trainer.iter + 1)

    def after_train(self) -> None:
        if self.trainer.iter >= self.trainer.max_iter:
            super().after_train()

    def _end_if_too_long(self, done: int) -> None:
        best = self.best
        if not (best and self.patience) or done % self._period or done == self.trainer.max_iter:
            return
        waited = (done - 1 - best.iteration) // self._period  # since the start if there is no best
        # Only the main process, whose answer is the first, knows the best iteration.
        if comm.all_gather(waited >= self.patience)[0]:
            kept = f"The best was {best.value:g} ({best.path}, iteration {best.iteration + 1})."
            logger.info(
                f"TEST.PATIENCE ends the training: {best.metric} has not improved in {waited} "
                f"evaluation(s). {kept if best.iteration >= 0 else 'It has never had a value.'}"
            )
            raise EndedEarly


class PreciseBN(hooks.PreciseBN):
    """Detectron2's PreciseBN hook, with the same images in every update, even in a resumed run."""

    def update_stats(self) -> None:
        self._data_iter = None
        super().update_stats()
