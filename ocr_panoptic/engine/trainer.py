"""Detectron2's trainer, plus what it lacks."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import torch
from detectron2.config import CfgNode
from detectron2.engine import TrainerBase, create_ddp_model, hooks
from detectron2.solver import LRScheduler
from detectron2.utils import comm
from fvcore.common.history_buffer import HistoryBuffer
from fvcore.nn.precise_bn import get_bn_modules
from torch import nn

from ocr_panoptic.checkpoint import (
    SafeCheckpointer,
    check_settings,
    fetch_weights,
    newest_whole,
    not_finite,
    settings_of,
)
from ocr_panoptic.data import TrainingStream, build_training_stream, run_seed
from ocr_panoptic.formats.run_folder import drop_unfinished_line, write_config
from ocr_panoptic.modeling import build_model
from ocr_panoptic.seeding import seed_generators

from .accumulation import AccumulatingTrainer
from .agreement import agree, stop_together
from .averaging import Averaging
from .evaluating import Evaluating
from .hooks import (
    BestModel,
    Checkpoints,
    EarlyEnd,
    EndedEarly,
    Evaluation,
    PreciseBN,
    StopOnSignal,
)
from .loss_log import with_advice
from .optimizer import build_clipping, build_optimizer, build_schedule
from .progress import ProgressBar, ProgressLines, TimeLeft
from .resume import Resume, find_checkpoint
from .run_claim import release
from .scaling import scaled
from .segfix_config import segfix_config
from .stopping import Stopping
from .summary import start_summary
from .task import task_of, training_records
from .trained_model import check_inference_keys
from .training_state import TrainingState

logger = logging.getLogger(__name__)

HISTORY = 1000  # values that are kept of each loss: Detectron2 takes medians of so many


class Trainer(Evaluating):
    """
    ``DefaultTrainer`` with

    - several CPU processes (Detectron2's asks DistributedDataParallel for GPUs),
    - gradient accumulation, AdamW, learning rates of heads and layers, and the poly schedule,
    - an average of the weights that is evaluated and saved (:class:`.Averaging`),
    - checkpoints that are whole or absent, and read without running code from them,
    - ``--resume`` that goes on exactly where the run ended, by the schedule of the config of now:
      images, their augmentation and every random number follow from the seed and the iteration,
    - an end by SIGTERM, SIGINT or SIGHUP that loses nothing, and by a loss that is not finite,
    - processes that stop together where one cannot start, with its reason,
    - data errors that name the file, the evaluators of this package, and their result files,
    - a line of progress, with the time left, at least 20 times in a run.
    """

    def __init__(self, cfg: CfgNode, written: str = ""):
        """
        Args:
            cfg: of this machine, see :func:`.setup`, which has checked it.
            written: YAML that OUTPUT_DIR/config.yaml has; "" for that of ``cfg``.
        """
        TrainerBase.__init__(self)
        self.cfg = cfg = scaled(cfg, comm.get_world_size())
        check_inference_keys(cfg)
        self._written = written or cfg.dump()
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.stopping = Stopping()
        seed = run_seed(cfg)
        with stop_together():
            segfix_config(cfg)  # which evaluations need
            model = self.build_model(cfg)
            if cfg.SOLVER.AMP.ENABLED:  # in half precision the faster one, on a CPU too
                model.to(memory_format=torch.channels_last)
            optimizer = self.build_optimizer(cfg, model)
        self._trainer = AccumulatingTrainer(
            model,
            self.build_train_loader(_seeded(cfg, seed)),
            optimizer,
            steps=cfg.SOLVER.ACCUMULATION_STEPS,
            amp=cfg.SOLVER.AMP.ENABLED,
            precision=cfg.SOLVER.AMP.PRECISION,
            gather_period=cfg.SOLVER.GATHER_METRIC_PERIOD,
            clip=build_clipping(cfg, optimizer),
        )
        self.model = create_ddp_model(
            model,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            device_ids=[comm.get_local_rank()] if cfg.MODEL.DEVICE.startswith("cuda") else None,
        )
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        self.averaging = Averaging.of(cfg, model)  # of the weights that all processes have by now
        self.state = TrainingState(cfg, model, self._trainer, self.scheduler, self.averaging, seed)
        self.checkpointer = SafeCheckpointer(
            model,
            cfg.OUTPUT_DIR,
            trust_pickle=cfg.MODEL.TRUST_PICKLE,
            min_share=cfg.MODEL.WEIGHTS_MIN_SHARE,
            trainer=self.state,
        )
        self.checkpointer.average = self.averaging and self.averaging.module
        self.best = None
        if cfg.TEST.BEST_CHECKPOINT:
            self.best = BestModel(self.checkpointer, cfg.TEST.BEST_CHECKPOINT)
        self.register_hooks(self.build_hooks())

    def resume_or_load(self, resume: Resume = True) -> None:
        """
        Load a checkpoint, and go on after its iteration, or the weights that the config names.

        Args:
            resume: from OUTPUT_DIR: True, False, or "auto": where there is a checkpoint.

        Raises:
            FileNotFoundError: see :func:`.resume.find_checkpoint`.
            ValueError: the checkpoint is of another model, or cannot be continued otherwise; or
                the processes find different ones.
        """
        with stop_together():
            file = find_checkpoint(self.cfg.OUTPUT_DIR, resume)
            fetch_weights(file or self.cfg.MODEL.WEIGHTS)
        agree({"checkpoint": file})
        if file:
            self._resume(file)
        else:
            self._load()
        record = self.checkpointer.record
        check_settings(self.cfg, record, strict=False)
        self.checkpointer.record = record and settings_of(self.cfg, record)
        with stop_together():
            if comm.is_main_process():
                self._begin(anew=not file)
        summary = start_summary(self.cfg, self.checkpointer, self.data_loader, self.start_iter)
        logger.info("%s", summary)

    def _load(self) -> None:
        with stop_together():
            self.checkpointer.load(self.cfg.MODEL.WEIGHTS, checkpointables=[])
        if self.averaging:
            self.averaging.begin()
        if former := self.checkpointer.get_checkpoint_file():
            logger.warning(
                "OUTPUT_DIR has checkpoints of another training, %s the last. This one starts "
                "anew and writes over them; another OUTPUT_DIR keeps both.",
                former,
            )

    def _resume(self, file: str) -> None:
        seed = self.state.seed
        with stop_together():
            self.state.check(file)
        with stop_together():
            self.checkpointer.load(file)
        if self.best:
            self.best.resume()
        self.start_iter = self.state.start.iteration
        agree({"first iteration": self.start_iter})
        if self.state.seed != seed:
            saved = _seeded(self.cfg, self.state.seed)
            self._trainer.reset_data_loader(lambda: self.build_train_loader(saved))
        if isinstance(self.data_loader, TrainingStream):
            self.data_loader.seen = self.state.start.images
        else:
            logger.warning("The data loader is no TrainingStream: its images start from the first")

    def _begin(self, anew: bool) -> None:
        """Make OUTPUT_DIR that of this run: until here a failed start has left it to the former."""
        is_used = anew and bool(newest_whole(self.cfg.OUTPUT_DIR))
        if is_used:
            self.checkpointer.begin_anew()
            if self.best:
                self.best.begin_anew()
        write_config(self.cfg.OUTPUT_DIR, self._written, keep_former=is_used)

    @property
    def evaluated_model(self) -> nn.Module:
        """The one that is evaluated and saved: with MODEL.EMA the average."""
        return self.averaging.module if self.averaging else self.model

    def build_hooks(self) -> list[hooks.HookBase]:
        cfg, is_main = self.cfg, comm.is_main_process()
        period = cfg.TEST.EVAL_PERIOD
        checkpoints = Checkpoints(
            self.checkpointer,
            period=cfg.SOLVER.CHECKPOINT_PERIOD,
            eval_period=period,
            keep=cfg.SOLVER.CHECKPOINTS_TO_KEEP,
            minutes=cfg.SOLVER.CHECKPOINT_MINUTES,
        )
        precise_bn = None
        if cfg.TEST.PRECISE_BN.ENABLED and get_bn_modules(self.evaluated_model):
            alone = _seeded(cfg, self.state.seed)
            alone.DATALOADER.NUM_WORKERS = 0
            loader = self.build_train_loader(alone)
            precise_bn = PreciseBN(
                period, self.evaluated_model, loader, cfg.TEST.PRECISE_BN.NUM_ITER
            )
        return [
            hooks.IterationTimer(),
            hooks.LRScheduler(),
            self.averaging,  # before what reads the average
            precise_bn,  # before the checkpoints, as it changes the model
            checkpoints,
            StopOnSignal(self.stopping, checkpoints),
            Evaluation(period, self._evaluate),
            EarlyEnd(self.best, period, cfg.TEST.PATIENCE) if cfg.TEST.PATIENCE else None,
            TimeLeft() if is_main else None,
            ProgressLines(self.build_writers(), log_period(self.max_iter), cfg.OUTPUT_DIR)
            if is_main
            else None,
            ProgressBar() if is_main else None,
        ]

    def train(self) -> dict | None:
        """
        Run the training; ends with status 128 + n by signal n, with all that was done saved.

        Returns:
            what :meth:`test` gave last; None where nothing was evaluated
        """
        if comm.is_main_process():
            drop_unfinished_line(self.cfg.OUTPUT_DIR)
        try:
            with self.stopping.listening(), suppress(EndedEarly):
                super().train()
            return getattr(self, "_last_eval_results", None)
        finally:
            try:
                self.checkpointer.wait()
            finally:
                release(self.cfg.OUTPUT_DIR)

    def before_train(self) -> None:
        # Of Detectron2's 270,000 iterations all values would take 500 MB.
        self.storage._history.default_factory = partial(HistoryBuffer, HISTORY)
        super().before_train()

    def run_step(self) -> None:
        """
        Raises:
            FloatingPointError: in all processes, a loss of the iteration before is infinite or NaN.
        """
        seed_generators(self.state.seed, comm.get_rank(), self.iter)
        try:
            super().run_step()
        except FloatingPointError as e:
            raise self._diverged(e) from e
        if (self.iter + 1) % log_period(self.max_iter) == 0 or self.iter == self.start_iter:
            self.check_losses()  # which a line of progress has

    def check_losses(self) -> None:
        """
        Check the losses of all processes; they call it in the same iteration.

        Raises:
            FloatingPointError: in all processes, a loss of an iteration since was not finite.
        """
        try:
            self._trainer.loss_log.flush()
        except FloatingPointError as e:
            raise self._diverged(e) from e

    def check_finite(self) -> None:
        """
        Check what is to be saved: a loss is that of the weights before its step.

        Raises:
            FloatingPointError: as :meth:`check_losses`; a weight is infinite or NaN.
        """
        self.check_losses()
        if what := not_finite(self.evaluated_model):
            error = FloatingPointError(f"Iteration {self.iter} has broken the model: {what}.")
            raise self._diverged(error)

    def _diverged(self, error: FloatingPointError) -> FloatingPointError:
        is_scaled = self._trainer.grad_scaler.is_enabled()
        return with_advice(error, self.cfg, is_scaled, self.checkpointer.get_checkpoint_file())

    def _evaluate(self) -> dict:
        with self.stopping.at_once():  # a checkpoint has been saved before
            saved = self.checkpointer.get_checkpoint_file()
            self._last_eval_results = self.test(self.cfg, self.evaluated_model, weights=saved)
        if self.best:
            self.best.update(self._last_eval_results, self.state.iteration)
        return self._last_eval_results

    @classmethod
    def build_model(cls, cfg: CfgNode) -> nn.Module:
        model = build_model(cfg)
        logger.debug("Model:\n%s", model)
        return model

    @classmethod
    def build_optimizer(cls, cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(cfg, model)

    @classmethod
    def build_lr_scheduler(cls, cfg: CfgNode, optimizer: torch.optim.Optimizer) -> LRScheduler:
        return build_schedule(cfg, optimizer)

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> Iterable[list[dict]]:
        task = task_of(cfg)
        with stop_together():
            if comm.is_main_process():
                for name in cfg.DATASETS.TRAIN:
                    task.describe_training_data(name)
            records = training_records(cfg)
        agree({"number of training images": len(records)})
        return build_training_stream(cfg, task.mapper(cfg, True), records, cfg.MODEL.DEVICE)


def log_period(max_iter: int) -> int:
    """Iterations between two lines of progress: Detectron2's 20, in short runs a twentieth."""
    return max(1, min(20, max_iter // 20))


def _seeded(cfg: CfgNode, seed: int) -> CfgNode:
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SEED = seed
    return cfg
