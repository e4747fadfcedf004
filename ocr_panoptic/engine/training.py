"""A trainer with exact resume, gradient accumulation, weight averaging and safe checkpoints."""

import logging
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, TrainerBase, create_ddp_model, hooks
from detectron2.utils import comm

from ocr_panoptic.checkpoint.checkpointer import NO_CHECKPOINT, SafeCheckpointer, newest_whole
from ocr_panoptic.checkpoint.settings import check_settings, settings_of
from ocr_panoptic.data.training_stream import TrainingStream, explained_workers, run_seed
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.run_folder import write_classes, write_config
from ocr_panoptic.modeling.build import build_model
from ocr_panoptic.predict.identity import (
    check_classes_of,
    check_settings_of,
    identity_of_run,
    read_identity,
)
from ocr_panoptic.predict.task import training_loader
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
from .optimizer import build_optimizer, build_schedule
from .resume import (
    Resume,
    continued_optimizer,
    differences,
    find_checkpoint,
    parameter_names,
    position_after,
    saved_state,
)
from .step import AccumulatingTrainer, build_clipping

logger = logging.getLogger(__name__)


class ResumableTrainer(DefaultTrainer):
    """
    A ``DefaultTrainer`` that saves its state when a signal ends the run, and resumes exactly.

    The trainer can also train in several CPU processes, accumulate gradients, use layer-wise
    learning rates, and average weights. Subclasses add evaluation.

    Attributes:
        seed: seed of the random numbers and the image order; after a resume, the saved run's seed.
    """

    build_model = staticmethod(build_model)
    build_optimizer = staticmethod(build_optimizer)
    build_lr_scheduler = staticmethod(build_schedule)
    build_train_loader = staticmethod(training_loader)

    def __init__(self, cfg: CfgNode, written: str = ""):
        """
        Build the model, optimizer, data loader and hooks.

        Args:
            cfg: config for this machine, checked by :func:`.setup`.
            written: text for OUTPUT_DIR/config.yaml; "" to write ``cfg``.
        """
        TrainerBase.__init__(self)  # DefaultTrainer.__init__ cannot use several CPU processes
        self.cfg = cfg = DefaultTrainer.auto_scale_workers(cfg, comm.get_world_size())
        self._written = written or cfg.dump()
        solver = cfg.SOLVER
        self.max_iter = solver.MAX_ITER
        self.seed = run_seed(cfg)
        self._start_images = 0  # images that all processes together had trained on before
        model = self.build_model(cfg)
        optimizer = self.build_optimizer(cfg, model)
        loader = self.build_train_loader(_seeded(cfg, self.seed))
        if solver.AMP.ENABLED:  # channels-last makes half precision faster, also on a CPU
            model.to(memory_format=torch.channels_last)
        self._trainer = AccumulatingTrainer(
            create_ddp_model(
                model,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                device_ids=[comm.get_local_rank()] if cfg.MODEL.DEVICE.startswith("cuda") else None,
            ),
            loader,
            optimizer,
            steps=solver.ACCUMULATION_STEPS,
            amp=solver.AMP.ENABLED,
            precision=solver.AMP.PRECISION,
            gather_period=min(solver.GATHER_METRIC_PERIOD, log_period(self.max_iter)),
            clip=build_clipping(cfg, optimizer),
        )
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        self._identity = identity_of_run(cfg, self._written)
        # The average starts at the current weights, which are equal in all processes.
        self.averaging = Averaging(model, cfg.MODEL.EMA.DECAY) if cfg.MODEL.EMA.ENABLED else None
        self.evaluated_model = self.averaging.module if self.averaging else model  # and saved
        self.checkpointer = SafeCheckpointer(
            model,
            cfg.OUTPUT_DIR,
            trust_pickle=cfg.MODEL.TRUST_PICKLE,
            min_share=cfg.MODEL.WEIGHTS_MIN_SHARE,
            average=self.averaging and self.averaging.module,
            identity=self._identity,
            by_class=cfg.MODEL.WEIGHTS_BY_CLASS,
            trainer=weakref.proxy(self),
        )
        best = cfg.TEST.BEST_CHECKPOINT
        self.best = BestModel(self.checkpointer, best) if best else None
        self.register_hooks(self.build_hooks())

    def build_hooks(self) -> list[hooks.HookBase | None]:
        cfg, period = self.cfg, self.cfg.TEST.EVAL_PERIOD
        precise_bn = checkpoints = writer = None
        if cfg.TEST.PRECISE_BN.ENABLED:
            own = _seeded(cfg, self.seed)
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

    def resume_or_load(self, resume: Resume = True) -> None:
        """
        Load the last checkpoint in OUTPUT_DIR if ``resume``, else the weights in MODEL.WEIGHTS.

        From a checkpoint, the training continues with the next iteration. If loading fails,
        OUTPUT_DIR stays unchanged; otherwise the run's config and classes are written there.
        """
        cfg, checkpointer = self.cfg, self.checkpointer
        file = comm.all_gather(find_checkpoint(cfg.OUTPUT_DIR, resume))[0]
        if file:
            state = saved_state(file, trust_pickle=cfg.MODEL.TRUST_PICKLE)
            self.start_iter, self._start_images = position_after(cfg, state)
            if changed := differences(cfg, state):
                logger.warning("Settings that differ from the saved run: %s", changed)
        else:
            identity = read_identity(cfg.MODEL.WEIGHTS, trust_pickle=cfg.MODEL.TRUST_PICKLE)
            check_settings_of(identity, cfg, strict=False)
            check_classes_of(identity, cfg.DATASETS.TRAIN, strict=False)
        checkpointer.load(file or cfg.MODEL.WEIGHTS, checkpointables=None if file else [])
        if self.averaging and not file:
            self.averaging.begin()
        if self.best and file:
            self.best.resume()
        check_settings(cfg, checkpointer.record, strict=False)
        checkpointer.record = checkpointer.record and settings_of(cfg, checkpointer.record)
        if comm.is_main_process():
            former = "" if file else newest_whole(cfg.OUTPUT_DIR)
            if former:
                checkpointer.tag_last_checkpoint(NO_CHECKPOINT)
                if self.best:
                    self.best.path.unlink(missing_ok=True)
            write_config(cfg.OUTPUT_DIR, self._written, keep_former=bool(former))
            write_classes(cfg.OUTPUT_DIR, self._identity["classes"])
        if isinstance(self.data_loader, TrainingStream):  # other loaders start at the first image
            self.data_loader.seen = self._start_images

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
            "parameters": parameter_names(self.checkpointer.model, self.optimizer),
            "_trainer": self._trainer.state_dict(),
        }
        if self.averaging:  # then the file's model is the average
            state["trained_weights"] = self.checkpointer.model.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """
        Load the training state of a checkpoint whose weights are already loaded.

        Only the momenta, loss scale, seed and, if weights are averaged, the unaveraged weights come
        from ``state_dict``; everything else follows the current config.
        """
        fit, model = self.checkpointer.fit, self.checkpointer.model
        if fit and (fit.faults or fit.unused):
            raise UserError(
                "The run cannot be resumed with this config, whose model is different: "
                f"{len(fit.faults) + len(fit.unused)} tensors differ.{fit.listing(3)}"
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
            cfg = _seeded(self.cfg, self.seed)
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
                f"{e}\nThe last whole checkpoint is {last}. Try SOLVER.BASE_LR below "
                f"{self.cfg.SOLVER.BASE_LR:g}, a longer SOLVER.WARMUP_ITERS, "
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


def log_period(max_iter: int) -> int:
    """Return the number of iterations between two log lines: 20, or fewer in a short run."""
    return max(1, min(20, max_iter // 20))


def _seeded(cfg: CfgNode, seed: int) -> CfgNode:
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SEED = seed
    return cfg
