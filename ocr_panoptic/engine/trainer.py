"""Detectron2's trainer, plus what it lacks."""

import logging
from contextlib import suppress
from functools import partial

from detectron2.config import CfgNode
from detectron2.engine import TrainerBase, hooks
from detectron2.utils import comm
from fvcore.common.history_buffer import HistoryBuffer
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, not_finite
from ocr_panoptic.data.training_stream import TrainingStream, run_seed
from ocr_panoptic.formats.run_folder import drop_unfinished_line
from ocr_panoptic.modeling import build_model
from ocr_panoptic.seeding import seed_generators

from .accumulation import build_steps
from .agreement import stop_together
from .averaging import Averaging
from .evaluating import Evaluating
from .hooks import BestModel, Checkpoints, EarlyEnd, EndedEarly, Evaluation, PreciseBN, StopOnSignal
from .loss_log import Diverged, with_advice
from .optimizer import build_optimizer, build_schedule
from .progress import ProgressBar, ProgressLines, TimeLeft
from .resume import Resume
from .run_claim import release
from .schedule import scaled
from .segfix import segfix_config
from .stopping import Stopping
from .summary import start_summary
from .task import training_loader
from .trained_model import check_inference_keys
from .training_state import TrainingState

logger = logging.getLogger(__name__)

HISTORY = 1000  # values that are kept of each loss: Detectron2 takes medians of so many


class Trainer(Evaluating):
    """
    ``DefaultTrainer`` of other parts: steps of several CPU processes, accumulated gradients and
    learning rates of layers (:mod:`.accumulation`, :mod:`.optimizer`), an average of the weights
    (:mod:`.averaging`), a state from which ``--resume`` goes on exactly (:mod:`.training_state`),
    evaluation of deployed models (:mod:`.evaluating`), whole checkpoints and an end by a signal
    that loses nothing (:mod:`.hooks`). Processes stop together where one cannot start.
    """

    build_optimizer = staticmethod(build_optimizer)
    build_lr_scheduler = staticmethod(build_schedule)
    build_train_loader = staticmethod(training_loader)

    def __init__(self, cfg: CfgNode, written: str = ""):
        """
        Args:
            cfg: of this machine, see :func:`.setup`, which has checked it.
            written: YAML that OUTPUT_DIR/config.yaml has; "" for that of ``cfg``.
        """
        TrainerBase.__init__(self)  # DefaultTrainer asks DistributedDataParallel for GPUs
        self.cfg = cfg = scaled(cfg, comm.get_world_size())
        check_inference_keys(cfg)
        self._written = written or cfg.dump()
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.stopping = Stopping()
        seed = run_seed(cfg)
        with stop_together():
            segfix_config(cfg)  # which evaluations need
            model = self.build_model(cfg)
            optimizer = self.build_optimizer(cfg, model)
        loader = self.build_train_loader(_seeded(cfg, seed))
        self._trainer = build_steps(cfg, model, loader, optimizer)
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        decay = cfg.MODEL.EMA.DECAY  # the average begins as the weights that all processes have now
        self.averaging = Averaging(model, decay) if cfg.MODEL.EMA.ENABLED else None
        self.state = TrainingState(cfg, model, self._trainer, self.scheduler, self.averaging, seed)
        self.checkpointer = SafeCheckpointer(
            model,
            cfg.OUTPUT_DIR,
            trust_pickle=cfg.MODEL.TRUST_PICKLE,
            min_share=cfg.MODEL.WEIGHTS_MIN_SHARE,
            average=self.averaging and self.averaging.module,
            trainer=self.state,
        )
        best = cfg.TEST.BEST_CHECKPOINT
        self.best = BestModel(self.checkpointer, best) if best else None
        self.register_hooks(self.build_hooks())

    def resume_or_load(self, resume: Resume = True) -> None:
        """
        Load a checkpoint, and go on after its iteration, or the weights that the config names.

        Args:
            resume: from OUTPUT_DIR: True, False, or "auto": where there is a checkpoint.

        Raises:
            FileNotFoundError, ValueError: as :meth:`.TrainingState.begin`.
        """
        seed = self.state.seed
        self.state.begin(self.checkpointer, self.best, resume, self._written)
        self.start_iter = self.state.start.iteration
        if self.state.seed != seed:
            saved = _seeded(self.cfg, self.state.seed)
            self._trainer.reset_data_loader(lambda: self.build_train_loader(saved))
        if isinstance(self.data_loader, TrainingStream):
            self.data_loader.seen = self.state.start.images
        elif self.start_iter:
            logger.warning("The data loader is no TrainingStream: its images start from the first")
        summary = start_summary(self.cfg, self.checkpointer, self.data_loader, self.start_iter)
        logger.info("%s", summary)

    @property
    def evaluated_model(self) -> nn.Module:
        """The one that is evaluated and saved: with MODEL.EMA the average."""
        return self.averaging.module if self.averaging else self.model

    def build_hooks(self) -> list[hooks.HookBase]:
        cfg, period = self.cfg, self.cfg.TEST.EVAL_PERIOD
        checkpoints, precise_bn = Checkpoints(self.checkpointer, cfg), None
        if cfg.TEST.PRECISE_BN.ENABLED:
            own = _seeded(cfg, self.state.seed)
            own.DATALOADER.NUM_WORKERS = 0
            loader, images = self.build_train_loader(own), cfg.TEST.PRECISE_BN.NUM_ITER
            precise_bn = PreciseBN(period, self.evaluated_model, loader, images)
        found = [
            hooks.IterationTimer(),
            hooks.LRScheduler(),
            self.averaging,  # before what reads the average
            precise_bn,  # before the checkpoints, as it changes the model
            checkpoints,
            StopOnSignal(self.stopping, checkpoints),
            Evaluation(period, self._evaluate),
            EarlyEnd(self.best, period, cfg.TEST.PATIENCE) if cfg.TEST.PATIENCE else None,
        ]
        if comm.is_main_process():
            lines = ProgressLines(self.build_writers(), log_period(self.max_iter), cfg.OUTPUT_DIR)
            found += [TimeLeft(), lines, ProgressBar()]
        return found

    def train(self) -> dict | None:
        """
        Run the training; ends with status 128 + n by signal n, with all that was done saved.

        Returns:
            what :meth:`test` gave last; None where nothing was evaluated

        Raises:
            FloatingPointError: in all processes, a loss or a weight is infinite or NaN.
        """
        if comm.is_main_process():
            drop_unfinished_line(self.cfg.OUTPUT_DIR)
        try:
            with self.stopping.listening(), suppress(EndedEarly):
                super().train()
            return getattr(self, "_last_eval_results", None)
        except Diverged as e:
            is_scaled = self._trainer.grad_scaler.is_enabled()
            last = self.checkpointer.get_checkpoint_file()
            raise with_advice(e, self.cfg, is_scaled, last) from e
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
        seed_generators(self.state.seed, comm.get_rank(), self.iter)
        super().run_step()
        if (self.iter + 1) % log_period(self.max_iter) == 0 or self.iter == self.start_iter:
            self._trainer.loss_log.flush()  # which a line of progress has

    def check_finite(self) -> None:
        """
        Check what is to be saved; all processes call it in the same iteration.

        Raises:
            FloatingPointError: a loss of an iteration since, or a weight, is infinite or NaN.
        """
        self._trainer.loss_log.flush()
        if what := not_finite(self.evaluated_model):  # a loss is of the weights before its step
            raise Diverged(f"Iteration {self.iter} has broken the model: {what}.")

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


def log_period(max_iter: int) -> int:
    """Iterations between two lines of progress: Detectron2's 20, in short runs a twentieth."""
    return max(1, min(20, max_iter // 20))


def _seeded(cfg: CfgNode, seed: int) -> CfgNode:
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SEED = seed
    return cfg
