"""Detectron2's trainer, plus what it lacks."""

import hashlib
import logging
import platform
import weakref
from collections.abc import Iterable
from typing import Any

import detectron2
import numpy as np
import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.data import build_detection_test_loader, build_detection_train_loader
from detectron2.engine import (
    DefaultTrainer,
    SimpleTrainer,
    TrainerBase,
    create_ddp_model,
)
from detectron2.evaluation import DatasetEvaluator
from detectron2.projects.deeplab import build_lr_scheduler
from detectron2.solver import LRScheduler
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage, has_event_storage
from torch import nn

import ocr_panoptic
from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings, settings_of
from ocr_panoptic.config import is_semantic
from ocr_panoptic.data import (
    PanopticDatasetMapper,
    SemanticDatasetMapper,
    log_class_histogram,
)
from ocr_panoptic.evaluation import build_evaluator, write_results

from .accumulation import AccumulatingTrainer
from .measurement import machine_name
from .setup import check_solver
from .trained_model import require_checkpoint


class Trainer(DefaultTrainer):
    """
    ``DefaultTrainer`` with

    - several CPU processes (Detectron2's asks DistributedDataParallel for GPUs),
    - gradient accumulation, and the poly schedule,
    - checkpoints that are read without running code from them,
    - ``--resume`` that fails where there is nothing to resume, and says where it starts,
    - data errors that name the file, the evaluators of this package, and their result files.
    """

    def __init__(self, cfg: CfgNode):
        # DefaultTrainer.__init__ with its parts exchanged where they differ, in its order.
        TrainerBase.__init__(self)
        cfg = _scaled(cfg)
        check_solver(cfg)
        model = self.build_model(cfg)
        optimizer = self.build_optimizer(cfg, model)
        data_loader = self.build_train_loader(cfg)
        model = create_ddp_model(
            model,
            broadcast_buffers=False,
            device_ids=[comm.get_local_rank()] if cfg.MODEL.DEVICE.startswith("cuda") else None,
        )
        steps, amp = cfg.SOLVER.ACCUMULATION_STEPS, cfg.SOLVER.AMP.ENABLED
        if steps > 1 or amp:  # Detectron2's AMPTrainer resumes no run that was without AMP
            self._trainer = AccumulatingTrainer(model, data_loader, optimizer, steps=steps, amp=amp)
        else:
            self._trainer = SimpleTrainer(model, data_loader, optimizer)
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        self.checkpointer = SafeCheckpointer(
            model,
            cfg.OUTPUT_DIR,
            trust_pickle=cfg.MODEL.TRUST_PICKLE,
            trainer=weakref.proxy(self),
        )
        self.start_iter = 0
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.cfg = cfg
        self.register_hooks(self.build_hooks())

    def resume_or_load(self, resume: bool = True) -> None:
        """
        Raises:
            FileNotFoundError: if ``resume`` is asked for and OUTPUT_DIR has no checkpoint.
        """
        if resume:
            require_checkpoint(self.checkpointer)
        super().resume_or_load(resume)
        record = self.checkpointer.record
        check_settings(self.cfg, record, strict=False)
        self.checkpointer.record = record and settings_of(self.cfg, record)
        logging.getLogger(__name__).info(
            "Training starts at iteration %d of %d (%s)",
            self.start_iter,
            self.max_iter,
            self.checkpointer.get_checkpoint_file() if resume else self.cfg.MODEL.WEIGHTS or "new",
        )

    @classmethod
    def build_lr_scheduler(cls, cfg: CfgNode, optimizer: torch.optim.Optimizer) -> LRScheduler:
        return build_lr_scheduler(cfg, optimizer)

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> Iterable[list[dict]]:
        # Not for panoptic data: the records of COCO take long to load, and they are checked before.
        if comm.is_main_process() and _mapper(cfg) is SemanticDatasetMapper:
            for name in cfg.DATASETS.TRAIN:
                log_class_histogram(name)
        return build_detection_train_loader(cfg, mapper=_mapper(cfg)(cfg, True))

    @classmethod
    def build_test_loader(cls, cfg: CfgNode, dataset_name: str) -> Iterable[list[dict]]:
        return build_detection_test_loader(cfg, dataset_name, mapper=_mapper(cfg)(cfg, False))

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
        return build_evaluator(cfg, dataset_name, _inference_dir(cfg, dataset_name))

    @classmethod
    def test(cls, cfg: CfgNode, model: nn.Module, evaluators: Any = None) -> dict:
        """Detectron2's ``test`` of the model that the main process has and saves; also writes the
        result files of every data set."""
        _share_buffers(model)
        results = super().test(cfg, model, evaluators)
        if comm.is_main_process():
            names = cfg.DATASETS.TEST
            for name in names:
                write_results(
                    results if len(names) == 1 else results[name],
                    _inference_dir(cfg, name),
                    run_info(cfg),
                )
        return results


def _share_buffers(model: nn.Module) -> None:
    """
    The main process's buffers in all processes. Plain batch norms have running statistics of their
    own in each, and an evaluation shared among them would be that of no checkpoint.
    """
    if comm.get_world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def _scaled(cfg: CfgNode) -> CfgNode:
    """Batch and schedule for the number of processes, from SOLVER.REFERENCE_WORLD_SIZE."""
    reference = cfg.SOLVER.REFERENCE_WORLD_SIZE
    if reference and cfg.SOLVER.IMS_PER_BATCH % reference:
        raise ValueError(
            f"SOLVER.IMS_PER_BATCH is {cfg.SOLVER.IMS_PER_BATCH}, which the "
            f"{reference} processes of SOLVER.REFERENCE_WORLD_SIZE do not divide."
        )
    return DefaultTrainer.auto_scale_workers(cfg, comm.get_world_size())


def run_info(cfg: CfgNode) -> dict[str, Any]:
    """What a reader of a result needs to repeat it. The iteration is None outside training."""
    iteration = None
    if has_event_storage():  # counted from 0, and already at MAX_ITER after training
        iteration = min(get_event_storage().iter + 1, cfg.SOLVER.MAX_ITER)
    anywhere = cfg.clone()
    anywhere.defrost()
    anywhere.OUTPUT_DIR = ""  # else no one else's run of this config had its hash
    return {
        "iteration": iteration,
        "seed": cfg.SEED,
        "config_sha256": hashlib.sha256(anywhere.dump().encode()).hexdigest(),
        # In training MODEL.WEIGHTS is where the run started, not what was evaluated.
        "weights" if iteration is None else "initial_weights": cfg.MODEL.WEIGHTS,
        "output_dir": cfg.OUTPUT_DIR,
        "device": machine_name(torch.device(cfg.MODEL.DEVICE).type),
        "processes": comm.get_world_size(),
        "ocr_panoptic": ocr_panoptic.__version__,
        "detectron2": detectron2.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _mapper(cfg: CfgNode) -> type:
    return SemanticDatasetMapper if is_semantic(cfg) else PanopticDatasetMapper


def _inference_dir(cfg: CfgNode, dataset_name: str) -> str:
    return f"{cfg.OUTPUT_DIR}/inference/{dataset_name}"
