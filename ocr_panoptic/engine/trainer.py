"""
Detectron2's trainer with exact resume, gradient accumulation, weight averaging and safe files.

``train_net.py`` adds this project's data and evaluators to it.
"""

import logging
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, TrainerBase, hooks
from detectron2.evaluation import verify_results
from detectron2.utils import comm
from detectron2.utils.events import EventWriter
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.checkpoint.checkpointer import NO_CHECKPOINT, SafeCheckpointer, newest_whole
from ocr_panoptic.checkpoint.matching import Demands
from ocr_panoptic.checkpoint.settings import IDENTITY, RECORD, check_settings, settings_of
from ocr_panoptic.checkpoint.start import Resume, Start, find_start
from ocr_panoptic.data.loading import explained_workers
from ocr_panoptic.data.training_stream import TrainingStream, run_seed, seeded
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.stored import evaluation_folder, write_evaluation
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.formats.run_folder import CONFIG, set_former_aside, write_classes, write_config
from ocr_panoptic.modeling.build import build_model
from ocr_panoptic.predict.identity import check_classes_of, check_settings_of, identity_of_run
from ocr_panoptic.predict.run_info import machine_name, run_info
from ocr_panoptic.predict.task import TASKS, refined
from ocr_panoptic.predict.trained_model import build_trained_model, deployed
from ocr_panoptic.seeding import seed_generators

from .hooks import (
    Averaging,
    BestModel,
    Checkpoints,
    EndedEarly,
    Evaluation,
    PreciseBN,
    StopOnSignal,
)
from .loggers import RunLogger
from .optimizer import build_optimizer, build_schedule
from .resume import continued_optimizer, differences, parameter_names, position_after
from .step import build_step

logger = logging.getLogger(__name__)


class ResumableTrainer(DefaultTrainer):
    """
    A ``DefaultTrainer`` that saves its state when a signal ends the run, and resumes exactly.

    It can also train in several CPU processes, accumulate gradients, use layer-wise learning rates,
    average weights, and log to the services that LOGGERS names. Evaluations use a faster copy of
    the model, and write the result files. Subclasses choose data and evaluators.

    Attributes:
        seed: seed of the random numbers and the image order; after a resume, the saved run's seed.
    """

    build_model = staticmethod(build_model)
    build_optimizer = staticmethod(partial(build_optimizer, own_step=True))
    build_lr_scheduler = staticmethod(build_schedule)

    def __init__(self, cfg: CfgNode):
        """Build the model, optimizer, data loader and hooks of a completed config."""
        TrainerBase.__init__(self)  # DefaultTrainer.__init__ cannot use several CPU processes
        self._unscaled = cfg
        self.cfg = cfg = DefaultTrainer.auto_scale_workers(cfg, comm.get_world_size())
        solver = cfg.SOLVER
        self.loggers = [RunLogger(name, cfg) for name in cfg.LOGGERS if comm.is_main_process()]
        self.max_iter = solver.MAX_ITER
        self.seed = run_seed(cfg)
        self._start_images = 0  # images that all processes together had trained on before
        self.trained_model = model = self.build_model(cfg)
        optimizer = self.build_optimizer(cfg, model)
        loader = self.build_train_loader(seeded(cfg, self.seed))
        gather_period = min(solver.GATHER_METRIC_PERIOD, log_period(self.max_iter))
        self._trainer = build_step(cfg, model, loader, optimizer, gather_period)
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        self._identity = identity_of_run(self._unscaled)
        self.averaging = Averaging(model, cfg.MODEL.EMA.DECAY) if cfg.MODEL.EMA.ENABLED else None
        self.evaluated_model = self.averaging.module if self.averaging else model  # and saved
        self.checkpointer = SafeCheckpointer(
            self.evaluated_model,
            cfg.OUTPUT_DIR,
            trust_pickle=cfg.MODEL.TRUST_PICKLE,
            demands=Demands(
                min_share=cfg.MODEL.WEIGHTS_MIN_SHARE,
                classes=self._identity["classes"] if cfg.MODEL.WEIGHTS_BY_CLASS else None,
            ),
            entries={IDENTITY: self._identity},
            trainer=weakref.proxy(self),
        )
        best = cfg.TEST.BEST_CHECKPOINT
        self.best = BestModel(self.checkpointer, best) if best else None
        self.register_hooks(self.build_hooks())

    def build_hooks(self) -> list[hooks.HookBase | None]:
        cfg, period = self.cfg, self.cfg.TEST.EVAL_PERIOD
        precise_bn = checkpoints = writer = None
        if cfg.TEST.PRECISE_BN.ENABLED:
            own = seeded(cfg, self.seed)
            own.DATALOADER.NUM_WORKERS = 0
            loader, images = self.build_train_loader(own), cfg.TEST.PRECISE_BN.NUM_ITER
            precise_bn = PreciseBN(period, self.evaluated_model, loader, images)
        if comm.is_main_process():
            checkpoints = Checkpoints(self.checkpointer, cfg, self.evaluated_model)
            writer = hooks.PeriodicWriter(self.build_writers(), log_period(self.max_iter))
        self.stopping = StopOnSignal(checkpoints)
        return [
            hooks.IterationTimer(),
            hooks.LRScheduler(),
            self.averaging,  # before the hooks that read the average
            precise_bn,  # before the checkpoints, as it changes the model
            checkpoints,
            self.stopping,
            Evaluation(period, self._evaluate, self.best, cfg.TEST.PATIENCE),
            writer,
        ]

    def build_writers(self) -> list[EventWriter]:
        return [*super().build_writers(), *self.loggers]

    def resume_or_load(self, resume: Resume | Start = "auto") -> None:
        """
        Load the last checkpoint in OUTPUT_DIR if ``resume``, else the weights in MODEL.WEIGHTS.

        From a checkpoint, the training continues with the next iteration. If loading fails,
        OUTPUT_DIR stays unchanged; otherwise the run's config and classes are written there.

        Args:
            resume: whether to resume, where True needs a checkpoint and "auto" does not; or the
                start, if it has been found already.
        """
        cfg, checkpointer, start = self.cfg, self.checkpointer, resume
        if not isinstance(start, Start):
            start = find_start(cfg, start)
        start = comm.all_gather(start)[0]  # the same in all processes
        if start.progress:
            self.start_iter, self._start_images = position_after(cfg, start.progress)
            if changed := differences(cfg, start.progress):
                logger.warning("Settings that differ from the saved run: %s", changed)
        else:
            check_settings_of(start, cfg, strict=False)
            if not cfg.MODEL.WEIGHTS_BY_CLASS:  # else the summary tells which rows are kept
                check_classes_of(start, cfg.DATASETS.TRAIN, strict=False)
        checkpointer.load(
            start.weights,
            checkpointables=None if start.progress else [],
            content=start.take_content(),
        )
        if self.averaging and not start.progress:
            self.averaging.begin()
        if self.best and start.progress:
            self.best.resume()
        if checkpointer.loaded and (record := checkpointer.loaded.record):
            check_settings(cfg, record, strict=False)
            checkpointer.entries[RECORD] = settings_of(cfg, record)
        if comm.is_main_process():
            self._begin_folder(start)
        if isinstance(self.data_loader, TrainingStream):  # other loaders start at the first image
            self.data_loader.seen = self._start_images
        for service in self.loggers:
            service.open(resumed=self.start_iter > 0)
        logger.info("%s", start_summary(self))

    def _begin_folder(self, start: Start) -> None:
        """Write the run's config and classes to OUTPUT_DIR; a new run first ends a former one."""
        folder, checkpointer = self.cfg.OUTPUT_DIR, self.checkpointer
        if not start.progress and newest_whole(folder):
            checkpointer.tag_last_checkpoint(NO_CHECKPOINT)
            if self.best:
                self.best.path.unlink(missing_ok=True)
            checkpointer.remove_numbered(kept=start.weights)
            set_former_aside(folder)
        write_config(folder, self._unscaled.dump())
        write_classes(folder, self._identity["classes"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs besides the weights."""
        iteration = self._trainer.iter  # the last iteration; self.iter is 1 more after the training
        done = iteration + 1 - self.start_iter
        state = {
            "iteration": iteration,
            "images": self._start_images + done * self.cfg.SOLVER.IMS_PER_BATCH,
            "seed": self.seed,
            "processes": comm.get_world_size(),
            "config": self.cfg.dump(),
            "parameters": parameter_names(self.trained_model, self.optimizer),
            "_trainer": self._trainer.state_dict(),
        }
        if self.averaging:  # then the file's model is the average
            state["trained_weights"] = self.trained_model.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """
        Load the training state of a checkpoint whose weights are already loaded.

        Only the momenta, loss scale, seed and, if weights are averaged, the unaveraged weights come
        from ``state_dict``; everything else follows the current config.
        """
        loaded, model = self.checkpointer.loaded, self.trained_model
        if loaded and (loaded.fit.faults or loaded.fit.unused):
            fit = loaded.fit
            raise UserError(
                "The run cannot be resumed, because the config describes another model. Use the "
                f"run's config. Tensors that differ ({len(fit.faults) + len(fit.unused)}):"
                f"{fit.listing(3)}"
            )
        if self.averaging:
            self.averaging.begin()
        if "trained_weights" in state_dict:
            model.load_state_dict(state_dict["trained_weights"])
        saved, iteration = state_dict["_trainer"], self.start_iter
        names = parameter_names(model, self.optimizer)
        momenta = continued_optimizer(
            saved["optimizer"], state_dict["parameters"], names, self.optimizer
        )
        self._trainer.load_state_dict({**saved, "optimizer": momenta, "iteration": iteration - 1})
        self.scheduler.last_epoch = iteration
        self.scheduler._last_lr = self.scheduler.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self.scheduler._last_lr):
            group["lr"] = rate
        if self.seed != state_dict["seed"]:
            self.seed = state_dict["seed"]
            cfg = seeded(self.cfg, self.seed)
            self._trainer.reset_data_loader(lambda: self.build_train_loader(cfg))

    def train(self) -> dict | None:
        """
        Run the training; if a signal arrives, save a checkpoint and exit.

        Returns:
            last results of :meth:`test`, or None if nothing was evaluated

        Raises:
            FloatingPointError: a loss or a weight is infinite or NaN. Such weights are not saved.
            SystemExit: a signal ended the run; the status is 128 + the signal's number.
        """
        try:
            with self.stopping.listening(), explained_workers(), suppress(EndedEarly):
                super().train()
            return getattr(self, "_last_eval_results", None)
        except FloatingPointError as e:
            last = self.checkpointer.get_checkpoint_file() or "none"
            raise FloatingPointError(
                f"{e}\nLast complete checkpoint: {last}. Try a SOLVER.BASE_LR below "
                f"{self.cfg.SOLVER.BASE_LR:g}, more SOLVER.WARMUP_ITERS, "
                "SOLVER.CLIP_GRADIENTS.ENABLED True or, with mixed precision, SOLVER.AMP.PRECISION "
                "bfloat16."
            ) from e

    def run_step(self) -> None:
        seed_generators(self.seed, comm.get_rank(), self.iter)
        super().run_step()

    def _evaluate(self) -> dict:
        with self.stopping.at_once():  # a checkpoint has just been saved
            saved = self.checkpointer.get_checkpoint_file()
            self._last_eval_results = self.test(self.cfg, self.evaluated_model, weights=saved)
        if self.best and comm.is_main_process():
            self.best.update(self._last_eval_results, self._trainer.iter)
        return self._last_eval_results

    @classmethod
    def evaluate(cls, cfg: CfgNode, start: Start | None = None) -> dict:
        """Evaluate MODEL.WEIGHTS; exit if the results differ from TEST.EXPECTED_RESULTS."""
        results = cls.test(cfg, build_trained_model(cfg, start))
        if comm.is_main_process():
            verify_results(cfg, results)
        return results

    @classmethod
    def test(
        cls, cfg: CfgNode, model: nn.Module, evaluators: Any = None, weights: str | None = None
    ) -> dict:
        """
        Evaluate the model on every data set in DATASETS.TEST, and write the result files.

        All processes evaluate with the main process's batch-norm statistics.

        Args:
            weights: file of the model's weights; None for MODEL.WEIGHTS.
        """
        if comm.get_world_size() > 1:
            # Plain batch norms have different running statistics in each process. All processes
            # must evaluate with the main process's statistics, because only these are saved.
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        # Each evaluation during training deploys the current weights. The calibration error needs
        # confidences.
        tested = refined(cfg, deployed(cfg, plain, confident=True))
        # CUDNN_BENCHMARK pays off for training crops of equal size, not for images of many sizes.
        benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
        try:
            with explained_workers():
                results = super().test(cfg, tested, evaluators)
        finally:
            torch.backends.cudnn.benchmark = benchmark
        if comm.is_main_process():
            names, run = cfg.DATASETS.TEST, run_info(cfg, model, weights)
            evaluated = cfg.clone()
            evaluated.defrost()
            evaluated.MODEL.WEIGHTS = run["weights"]
            for name in names:
                folder = evaluation_folder(cfg.OUTPUT_DIR, name)
                write_evaluation(results if len(names) == 1 else results[name], folder, run)
                write_text(folder / CONFIG, evaluated.dump())
        return results


def log_period(max_iter: int) -> int:
    """Return the number of iterations between two log lines: 20, or fewer in a short run."""
    return max(1, min(20, max_iter // 20))


def start_summary(trainer: ResumableTrainer) -> str:
    """Return the first lines of a training log: data, model, weights, schedule and device."""
    cfg, checkpointer, start = trainer.cfg, trainer.checkpointer, trainer.start_iter
    solver, head, model = cfg.SOLVER, cfg.MODEL.SEM_SEG_HEAD.NAME, trainer.trained_model
    examples = getattr(trainer.data_loader, "examples", None)  # only a TrainingStream has them
    images = len(examples.records) if examples else 0
    epochs = (solver.MAX_ITER - start) * solver.IMS_PER_BATCH / max(1, images)
    task = TASKS.get(cfg.MODEL.META_ARCHITECTURE)  # None for a model that is not of this project
    classes = f"; {task.classes(cfg)}" if task else ""
    context = "" if head in ("SemSegFPNHead", "SegFixHead") else f" with {cfg.MODEL.CONTEXT.NAME}"
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return f"""Training starts at iteration {start} of {solver.MAX_ITER}
data      {", ".join(cfg.DATASETS.TRAIN)} ({images} images), evaluated on \
{", ".join(cfg.DATASETS.TEST) or "nothing"}{classes}
model     {cfg.MODEL.META_ARCHITECTURE}: {cfg.MODEL.BACKBONE.NAME}, {head}{context}; \
{trained / 1e6:.1f} M trainable parameters
weights   {checkpointer.summary()}
schedule  {solver.MAX_ITER - start} iterations of {solver.IMS_PER_BATCH} images, {epochs:.1f} \
epochs; {solver.OPTIMIZER}, learning rate {solver.BASE_LR:g}, {solver.LR_SCHEDULER_NAME}
device    {cfg.MODEL.DEVICE} ({machine_name(cfg.MODEL.DEVICE)}), {comm.get_world_size()} process(es)
output    {cfg.OUTPUT_DIR}"""
