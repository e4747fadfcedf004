"""The evaluation of a model on the test sets of its config."""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.data import build_detection_test_loader
from detectron2.engine import DefaultTrainer
from detectron2.evaluation import DatasetEvaluator, verify_results
from detectron2.utils import comm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.data.training_stream import leave_signals_to_the_trainer
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.formats.run_folder import CONFIG, evaluation_folder, write_evaluation

from .progress import WatchedLoader
from .run_info import portable, run_info
from .segfix import refined_by_segfix, segfix_config
from .single_image import SegFixMapper
from .task import task_of
from .trained_model import build_trained_model, deployed


class Evaluating(DefaultTrainer):
    """``DefaultTrainer``'s evaluation of a deployed model, with the evaluators of this package, and
    its result files."""

    @classmethod
    def evaluate(cls, cfg: CfgNode) -> dict:
        """:meth:`test` of the weights that the config names, see :func:`.build_trained_model`; ends
        the program where they do not give TEST.EXPECTED_RESULTS."""
        results = cls.test(cfg, build_trained_model(cfg))
        if comm.is_main_process():
            verify_results(cfg, results)
        return results

    @classmethod
    def build_test_loader(cls, cfg: CfgNode, dataset_name: str) -> Iterable[list[dict]]:
        mapper = task_of(cfg).mapper(cfg, False)
        if segfix_cfg := segfix_config(cfg):
            mapper = SegFixMapper(mapper, segfix_cfg)
        loader = build_detection_test_loader(cfg, dataset_name, mapper=mapper)
        loader.worker_init_fn = leave_signals_to_the_trainer
        return WatchedLoader(loader, f"evaluate {dataset_name}")

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
        folder = evaluation_folder(cfg.OUTPUT_DIR, dataset_name)
        evaluator = task_of(cfg).evaluator(cfg, dataset_name, folder)
        # On a CPU the model has all cores.
        return BesideTheModel(evaluator) if cfg.MODEL.DEVICE.startswith("cuda") else evaluator

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


class BesideTheModel(DatasetEvaluator):
    """
    An evaluator that takes its batches in a thread, in order, while the model sees the next one.
    An error in it ends the evaluation one or two batches later.

    Args:
        evaluator: which computes the same, whoever calls it.
    """

    WAITING = 1  # batches beside the one in work: their outputs are held

    def __init__(self, evaluator: DatasetEvaluator):
        self._evaluator = evaluator
        self._pending: deque[Future] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def reset(self) -> None:
        self._evaluator.reset()
        self._pending.clear()
        self._thread = ThreadPoolExecutor(1, initializer=self._begin)

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Take a batch; raises what the evaluator raised for one of the last two."""
        self._wait(self.WAITING)
        self._pending.append(self._thread.submit(self._evaluator.process, inputs, outputs))

    def evaluate(self) -> dict | None:
        """Return the evaluator's result of all batches."""
        self._wait(0)
        self._thread.shutdown()
        return self._evaluator.evaluate()

    def _begin(self) -> None:  # each thread has a GPU and a mode of its own
        if self._device is not None:
            torch.cuda.set_device(self._device)
        torch.set_grad_enabled(False)

    def _wait(self, left: int) -> None:
        while len(self._pending) > left:
            self._pending.popleft().result()


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
