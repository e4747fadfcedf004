"""Keep the checkpoint with the best value of a metric."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from detectron2.evaluation.testing import flatten_results_dict

from ocr_panoptic.checkpoint.checkpointer import SafeCheckpointer

logger = logging.getLogger(__name__)


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
            logger.warning(text, self.metric, ", ".join(metrics))
        elif value > self.value:
            self.value, self.iteration = value, iteration
            best = {self.metric: value}
            self.checkpointer.save(self.path.stem, tag=False, iteration=iteration, best=best)
            logger.info("New best value of %s: %g", self.metric, value)
