"""The trainer that ``ocr-panoptic train`` and ``ocr-panoptic evaluate`` use."""

import logging
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.data import build_detection_test_loader
from detectron2.evaluation import DatasetEvaluator, verify_results
from detectron2.utils import comm
from detectron2.utils.events import EventWriter
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ocr_panoptic.data.training_stream import end_if_an_image_is_lost, explained_workers
from ocr_panoptic.evaluation.build import build_evaluator
from ocr_panoptic.evaluation.stored import evaluation_folder, write_evaluation
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.predict.run_info import machine_name, portable, run_info
from ocr_panoptic.predict.segfix import refined_by_segfix, segfix_config
from ocr_panoptic.predict.single_image import with_segfix_input
from ocr_panoptic.predict.task import task_of
from ocr_panoptic.predict.trained_model import build_trained_model, deployed

from .loggers import RunLogger
from .resume import Resume
from .training import ResumableTrainer

logger = logging.getLogger(__name__)


class Trainer(ResumableTrainer):
    """
    A resumable trainer that also evaluates models and writes the result files.

    Evaluations use a faster copy of the model. The trainer also logs to the services that LOGGERS
    names.
    """

    def __init__(self, cfg: CfgNode, written: str = ""):
        self.loggers = [RunLogger(name, cfg) for name in cfg.LOGGERS if comm.is_main_process()]
        super().__init__(cfg, written)

    def build_writers(self) -> list[EventWriter]:
        return [*super().build_writers(), *self.loggers]

    def resume_or_load(self, resume: Resume = True) -> None:
        super().resume_or_load(resume)
        for service in self.loggers:
            service.open(resumed=self.start_iter > 0)
        logger.info("%s", start_summary(self))

    @classmethod
    def evaluate(cls, cfg: CfgNode) -> dict:
        """Evaluate MODEL.WEIGHTS; exit if the results differ from TEST.EXPECTED_RESULTS."""
        results = cls.test(cfg, build_trained_model(cfg))
        if comm.is_main_process():
            verify_results(cfg, results)
        return results

    @classmethod
    def build_test_loader(cls, cfg: CfgNode, dataset_name: str) -> DataLoader:
        mapper = task_of(cfg).mapper(cfg, False)
        if segfix_cfg := segfix_config(cfg):
            mapper = partial(with_segfix_input, mapper, segfix_cfg)
        loader = build_detection_test_loader(cfg, dataset_name, mapper=mapper)
        loader.worker_init_fn = end_if_an_image_is_lost
        return loader

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
        folder = evaluation_folder(cfg.OUTPUT_DIR, dataset_name)
        evaluator = task_of(cfg).evaluator or build_evaluator
        return evaluator(cfg, dataset_name, folder)

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
        tested = refined_by_segfix(cfg, deployed(cfg, plain, confident=True))
        # CUDNN_BENCHMARK pays off for training crops of equal size, not for images of many sizes.
        benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
        try:
            with explained_workers():
                results = super().test(cfg, tested, evaluators)
        finally:
            torch.backends.cudnn.benchmark = benchmark
        if comm.is_main_process():
            names, run = cfg.DATASETS.TEST, run_info(cfg, model, weights)
            for name in names:
                folder = evaluation_folder(cfg.OUTPUT_DIR, name)
                write_evaluation(results if len(names) == 1 else results[name], folder, run)
                write_text(folder / CONFIG, portable(cfg, run["weights"]).dump())
        return results


def start_summary(trainer: Trainer) -> str:
    """Return the first lines of a training log: data, model, weights, schedule and device."""
    cfg, checkpointer, start = trainer.cfg, trainer.checkpointer, trainer.start_iter
    solver, head, model = cfg.SOLVER, cfg.MODEL.SEM_SEG_HEAD.NAME, checkpointer.model
    examples = getattr(trainer.data_loader, "examples", None)  # only a TrainingStream has them
    images = len(examples.records) if examples else 0
    epochs = (solver.MAX_ITER - start) * solver.IMS_PER_BATCH / max(1, images)
    context = "" if head in ("SemSegFPNHead", "SegFixHead") else f" with {cfg.MODEL.CONTEXT.NAME}"
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return f"""Training starts at iteration {start} of {solver.MAX_ITER}
data      {", ".join(cfg.DATASETS.TRAIN)} ({images} images), evaluated on \
{", ".join(cfg.DATASETS.TEST) or "nothing"}; {task_of(cfg).classes(cfg)}
model     {cfg.MODEL.META_ARCHITECTURE}: {cfg.MODEL.BACKBONE.NAME}, {head}{context}; \
{trained / 1e6:.1f} M trained parameters
weights   {checkpointer.summary()}
schedule  {solver.MAX_ITER - start} iterations of {solver.IMS_PER_BATCH} images, {epochs:.1f} \
epochs; {solver.OPTIMIZER}, learning rate {solver.BASE_LR:g}, {solver.LR_SCHEDULER_NAME}
device    {cfg.MODEL.DEVICE} ({machine_name(cfg.MODEL.DEVICE)}), {comm.get_world_size()} process(es)
output    {cfg.OUTPUT_DIR}"""
