"""Detectron2's trainer, plus what it lacks."""

import logging
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.data import build_detection_test_loader
from detectron2.engine import DefaultTrainer, TrainerBase, create_ddp_model, hooks
from detectron2.evaluation import DatasetEvaluator, verify_results
from detectron2.projects.deeplab import build_lr_scheduler
from detectron2.solver import LRScheduler
from detectron2.utils import comm
from fvcore.nn.precise_bn import get_bn_modules
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.checkpoint import (
    SafeCheckpointer,
    check_settings,
    fetch_weights,
    newest_whole,
    settings_of,
)
from ocr_panoptic.checkpoint.former_names import rename_former
from ocr_panoptic.data import (
    TrainingStream,
    build_training_stream,
    leave_signals_to_the_trainer,
    run_seed,
)
from ocr_panoptic.errors import Telling
from ocr_panoptic.evaluation import build_evaluator
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.formats.run_folder import (
    CONFIG,
    drop_unfinished_line,
    evaluation_folder,
    write_config,
    write_evaluation,
)
from ocr_panoptic.modeling import build_model
from ocr_panoptic.seeding import seed_generators

from .accumulation import AccumulatingTrainer
from .agreement import agree, stop_together
from .averaging import Averaging
from .hooks import BestModel, Checkpoints, Evaluation, PreciseBN, StopOnSignal
from .optimizer import build_clipping, build_optimizer
from .progress import ProgressBar, ProgressLines, WatchedLoader
from .resume import (
    Position,
    Resume,
    continued_optimizer,
    continued_state,
    difference_table,
    find_checkpoint,
    parameter_names,
    position_after,
    set_iteration,
)
from .run_claim import release
from .run_info import portable, run_info
from .scaling import scaled
from .segfix import SegFixMapper, refined_by_segfix
from .segfix_config import segfix_config
from .setup import check_solver
from .stopping import Stopping
from .summary import start_summary
from .task import task_of, training_records
from .trained_model import build_trained_model, check_inference_keys, deployed

logger = logging.getLogger(__name__)


class Trainer(DefaultTrainer):
    """
    ``DefaultTrainer`` with

    - several CPU processes (Detectron2's asks DistributedDataParallel for GPUs),
    - gradient accumulation, AdamW, learning rates of heads and layers, and the poly schedule,
    - an average of the weights that is evaluated and saved (:class:`.Averaging`),
    - checkpoints that are whole or absent, and read without running code from them,
    - ``--resume`` that goes on exactly where the run ended, by the schedule of the config of now:
      images, their augmentation and every random number follow from the seed and the iteration,
    - an end by SIGTERM or SIGINT that loses nothing, and by a loss that is not finite,
    - processes that stop together where one cannot start, with its reason,
    - data errors that name the file, the evaluators of this package, and their result files,
    - a line of progress, with the time left, at least 20 times in a run.
    """

    def __init__(self, cfg: CfgNode, written: str = ""):
        """
        Args:
            cfg: of this machine, see :func:`.setup`.
            written: YAML that OUTPUT_DIR/config.yaml has; "" for that of ``cfg``.
        """
        # DefaultTrainer.__init__ with its parts exchanged where they differ, in its order.
        TrainerBase.__init__(self)
        cfg = scaled(cfg, comm.get_world_size())
        check_solver(cfg, comm.get_world_size())
        check_inference_keys(cfg)
        self.cfg = cfg
        self.seed = run_seed(cfg)
        with stop_together():
            segfix_config(cfg)  # which evaluations need
            model = self.build_model(cfg)
            optimizer = self.build_optimizer(cfg, model)
        data_loader = self.build_train_loader(self._seeded_cfg())
        model = create_ddp_model(
            model,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            device_ids=[comm.get_local_rank()] if cfg.MODEL.DEVICE.startswith("cuda") else None,
        )
        self._trainer = AccumulatingTrainer(
            model,
            data_loader,
            optimizer,
            steps=cfg.SOLVER.ACCUMULATION_STEPS,
            amp=cfg.SOLVER.AMP.ENABLED,
            precision=cfg.SOLVER.AMP.PRECISION,
            gather_period=cfg.SOLVER.GATHER_METRIC_PERIOD,
            clip=build_clipping(cfg, optimizer),
        )
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        self.checkpointer = SafeCheckpointer(
            model,
            cfg.OUTPUT_DIR,
            trust_pickle=cfg.MODEL.TRUST_PICKLE,
            min_share=cfg.MODEL.WEIGHTS_MIN_SHARE,
            trainer=weakref.proxy(self),
        )
        # Of the weights that all processes have by now.
        self.averaging = Averaging.of(cfg, self.checkpointer.model)
        self.checkpointer.average = self.averaging and self.averaging.module
        self._written = written or cfg.dump()
        self.start = Position(0, 0)
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.stopping = Stopping()
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
            seed = self.seed
            self._resume(file)
            agree({"first iteration": self.start_iter})
            self._enter_data(seed)
        else:
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
        record = self.checkpointer.record
        check_settings(self.cfg, record, strict=False)
        self.checkpointer.record = record and settings_of(self.cfg, record)
        with stop_together():
            if comm.is_main_process():
                self._begin(anew=not file)
        summary = start_summary(self.cfg, self.checkpointer, self.data_loader, self.start_iter)
        logger.info("%s", summary)

    def _begin(self, anew: bool) -> None:
        """Make OUTPUT_DIR that of this run: until here a failed start has left it to the former."""
        is_used = anew and bool(newest_whole(self.cfg.OUTPUT_DIR))
        if is_used:
            self.checkpointer.begin_anew()
            if self.best:
                self.best.begin_anew()
        write_config(self.cfg.OUTPUT_DIR, self._written, keep_former=is_used)

    def _resume(self, file: str) -> None:
        with stop_together():
            state = continued_state(self.cfg, file, self.checkpointer.model)
            self.start = position_after(self.cfg, state)
        self.start_iter = self.start.iteration
        if table := difference_table(self.cfg, state):
            logger.warning("The run goes on with other settings, those on the right:\n%s", table)
        with stop_together():
            self.checkpointer.load(file)
        if self.best:
            self.best.resume()

    @property
    def evaluated_model(self) -> nn.Module:
        """The one that is evaluated and saved: with MODEL.EMA the average."""
        return self.averaging.module if self.averaging else self.model

    @property
    def last_iteration(self) -> int:
        """The one that the model is of."""
        return min(self.storage.iter, self.max_iter - 1)  # MAX_ITER after the training

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs besides the model's weights: the random numbers and
        the images to come follow from seed and position."""
        done = self.last_iteration + 1 - self.start_iter
        state = {
            "iteration": self.last_iteration,
            "images": self.start.images + done * self.cfg.SOLVER.IMS_PER_BATCH,
            "seed": self.seed,
            "processes": comm.get_world_size(),
            "config": self.cfg.dump(),
            "parameters": parameter_names(self.checkpointer.model, self.optimizer),
            "_trainer": self._trainer.state_dict(),
        }
        if self.averaging:  # which is the model of the file
            state["trained_weights"] = self.averaging.trained()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """
        Raises:
            ValueError: see :func:`.resume.continued_optimizer`.
        """
        if self.averaging:
            self.averaging.begin()  # with that of the file, which the model has been filled with
        if "trained_weights" in state_dict:
            weights = rename_former(state_dict["trained_weights"])
            self.checkpointer.model.load_state_dict(weights)
        saved = dict(state_dict["_trainer"])
        saved["optimizer"] = continued_optimizer(
            saved["optimizer"],
            state_dict.get("parameters"),
            parameter_names(self.checkpointer.model, self.optimizer),
            self.optimizer,
        )
        self._trainer.load_state_dict(saved)
        set_iteration(self.scheduler, self.start.iteration)
        if "seed" not in state_dict:
            logger.warning("The checkpoint has no seed: the images come in an order of this run's")
        self.seed = state_dict.get("seed", self.seed)

    def build_hooks(self) -> list[hooks.HookBase]:
        cfg, is_main = self.cfg, comm.is_main_process()
        period = cfg.TEST.EVAL_PERIOD
        checkpoints = Checkpoints(
            self.checkpointer,
            period=cfg.SOLVER.CHECKPOINT_PERIOD,
            eval_period=period,
            keep=cfg.SOLVER.CHECKPOINTS_TO_KEEP,
        )
        precise_bn = None
        if cfg.TEST.PRECISE_BN.ENABLED and get_bn_modules(self.evaluated_model):
            alone = self._seeded_cfg()
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
            ProgressLines(self.build_writers(), log_period(self.max_iter)) if is_main else None,
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
            with self.stopping.listening():
                super().train()
            return getattr(self, "_last_eval_results", None)
        finally:
            release(self.cfg.OUTPUT_DIR)

    def run_step(self) -> None:
        """
        Raises:
            FloatingPointError: in all processes, a loss is infinite or NaN.
        """
        seed_generators(self.seed, comm.get_rank(), self.iter)
        try:
            super().run_step()
        except FloatingPointError as e:
            raise self._diverged(e) from e

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

    def _diverged(self, error: FloatingPointError) -> FloatingPointError:
        solver, last = self.cfg.SOLVER, self.checkpointer.get_checkpoint_file()
        advice = [f"SOLVER.BASE_LR below {solver.BASE_LR:g}"]
        advice.append(f"SOLVER.WARMUP_ITERS above {solver.WARMUP_ITERS}")
        if not solver.CLIP_GRADIENTS.ENABLED:
            advice.append("SOLVER.CLIP_GRADIENTS.ENABLED True")
        if self._trainer.grad_scaler.is_enabled():
            advice.append("SOLVER.AMP.PRECISION bfloat16")
        return FloatingPointError(
            f"Iteration {self.iter}: {error}\n"
            f"The last whole checkpoint is {last or 'none'}. Look at these images and their "
            f"labels; else {'continue with --resume' if last else 'begin again'} and try "
            f"{', '.join(advice[:-1])} or {advice[-1]}."
        )

    def _evaluate(self) -> dict:
        with self.stopping.at_once():  # a checkpoint has been saved before
            saved = self.checkpointer.get_checkpoint_file()
            self._last_eval_results = self.test(self.cfg, self.evaluated_model, weights=saved)
        if self.best:
            self.best.update(self._last_eval_results, self.last_iteration)
        return self._last_eval_results

    def _seeded_cfg(self) -> CfgNode:
        cfg = self.cfg.clone()
        cfg.defrost()
        cfg.SEED = self.seed
        return cfg

    def _enter_data(self, seed: int) -> None:
        """Return where the saved run left its images; ``seed`` is the one that the loader has."""
        if seed != self.seed:
            self._trainer.reset_data_loader(lambda: self.build_train_loader(self._seeded_cfg()))
        if isinstance(self.data_loader, TrainingStream):
            self.data_loader.seen = self.start.images
        else:
            logger.warning("The data loader is no TrainingStream: its images start from the first")

    @classmethod
    def evaluate(cls, cfg: CfgNode) -> dict:
        """:meth:`test` of the weights that the config names, see :func:`.build_trained_model`; ends
        the program where they do not give TEST.EXPECTED_RESULTS."""
        results = cls.test(cfg, build_trained_model(cfg))
        if comm.is_main_process():
            verify_results(cfg, results)
        return results

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
        steps = tuple(step for step in cfg.SOLVER.STEPS if step < cfg.SOLVER.MAX_ITER)
        if cfg.SOLVER.LR_SCHEDULER_NAME == "WarmupMultiStepLR" and steps != tuple(cfg.SOLVER.STEPS):
            logger.warning(
                "SOLVER.STEPS is %s: those from SOLVER.MAX_ITER %d on have no effect",
                tuple(cfg.SOLVER.STEPS),
                cfg.SOLVER.MAX_ITER,
            )
            cfg = cfg.clone()
            cfg.defrost()
            cfg.SOLVER.STEPS = steps  # Detectron2 fails where one of them is MAX_ITER
        return build_lr_scheduler(cfg, optimizer)

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

    @classmethod
    def build_test_loader(cls, cfg: CfgNode, dataset_name: str) -> Iterable[list[dict]]:
        mapper = task_of(cfg).mapper(cfg, False)
        if segfix_cfg := segfix_config(cfg):
            mapper = SegFixMapper(mapper, segfix_cfg)
        loader = build_detection_test_loader(cfg, dataset_name, mapper=Telling(mapper))
        loader.worker_init_fn = leave_signals_to_the_trainer
        return WatchedLoader(loader, f"evaluate {dataset_name}")

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
        return build_evaluator(cfg, dataset_name, evaluation_folder(cfg.OUTPUT_DIR, dataset_name))

    @classmethod
    def test(
        cls, cfg: CfgNode, model: nn.Module, evaluators: Any = None, weights: str | None = None
    ) -> dict:
        """
        Detectron2's ``test`` of the model that the main process has and saves; also writes the
        result files of every data set.

        Args:
            weights: the file of the model's weights; None where it is MODEL.WEIGHTS.
        """
        _share_buffers(model)
        # Made anew from the weights of now in each evaluation of a training; the calibration error
        # is of the confidence.
        tested = deployed(cfg, _without_ddp(model), confident=True)
        # CUDNN_BENCHMARK is for the one size of training crops: images of an evaluation have many.
        benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
        try:
            results = super().test(cfg, refined_by_segfix(cfg, tested), evaluators)
        finally:
            torch.backends.cudnn.benchmark = benchmark
        if comm.is_main_process():
            names, run = cfg.DATASETS.TEST, run_info(cfg, model, weights)
            for name in names:
                folder = evaluation_folder(cfg.OUTPUT_DIR, name)
                write_evaluation(results if len(names) == 1 else results[name], folder, run)
                write_text(folder / CONFIG, portable(cfg, run["weights"]).dump())
        return results


def log_period(max_iter: int) -> int:
    """Iterations between two lines of progress: Detectron2's 20, in short runs a twentieth."""
    return max(1, min(20, max_iter // 20))


def _without_ddp(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _share_buffers(model: nn.Module) -> None:
    """
    The main process's buffers in all processes. Plain batch norms have running statistics of their
    own in each, and an evaluation shared among them would be that of no checkpoint.
    """
    if comm.get_world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
