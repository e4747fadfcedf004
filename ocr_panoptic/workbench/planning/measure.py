"""Measure what a training costs on this machine: seconds of a step and of an evaluation."""

import statistics
import time
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage

from ocr_panoptic.config.keys import PANOPTIC
from ocr_panoptic.data.data_file import DataFile
from ocr_panoptic.data.loading import build_test_loader
from ocr_panoptic.data.training_stream import build_training_stream
from ocr_panoptic.engine.optimizer import build_optimizer
from ocr_panoptic.engine.step import build_step
from ocr_panoptic.modeling.build import build_model
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.task import task_of

from .rules import FEW

WARM, STEPS, IMAGES = 2, 6, 5  # steps before the measured ones, measured steps, predicted images
# An untrained network that finds no objects predicts faster than a trained one.
SLOWER = 1.5
# Later steps are slower: better proposals show more objects to the mask head (nuclei: 1.80 s for
# 1.53 s, and 1.88 s for 1.60 s).
LATER = 1.15


class Costs(NamedTuple):
    """Seconds of a training step, and of an evaluation on all images."""

    step: float
    evaluation: float


def measured_costs(cfg: CfgNode, files: Sequence[DataFile]) -> Costs:
    """Return the costs of a training with this config, measured from random weights."""
    complete_config(cfg, training=True, needs_data=True, files=files)
    mapper = task_of(cfg).mapper
    # An untrained network may find as many objects as it is allowed to, a trained one seldom does.
    cfg.TEST.DETECTIONS_PER_IMAGE = min(FEW, cfg.TEST.DETECTIONS_PER_IMAGE)
    model = build_model(cfg)
    optimizer = build_optimizer(cfg, model, own_step=True)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # random weights could diverge
    stream = build_training_stream(cfg, mapper(cfg, True), cfg.MODEL.DEVICE)
    trainer = build_step(cfg, model, stream, optimizer, gather_period=WARM + STEPS + 1)
    model.train()
    with EventStorage() as storage:
        seconds = []
        for storage.iter in range(WARM + STEPS):
            start = time.perf_counter()
            trainer.iter = storage.iter
            trainer.run_step()
            if cfg.MODEL.DEVICE.startswith("cuda"):
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    evaluation = 0.0
    model.eval()
    for name in cfg.DATASETS.TEST:
        loader = build_test_loader(cfg, name, mapper(cfg, False))
        with torch.inference_mode():
            batches = islice(loader, IMAGES)
            next(batches)  # starts the loader's processes
            start = time.perf_counter()
            outputs = [output for batch in batches for output in model(batch)]
            seconds_of_all = (time.perf_counter() - start) / (len(outputs) or 1) * len(loader)
        has_objects = any(len(output.get("instances", ())) for output in outputs)
        evaluation += seconds_of_all * (1 if has_objects else SLOWER)
    later = LATER if PANOPTIC.holds(cfg) else 1.0
    return Costs(later * statistics.fmean(seconds[WARM:]), evaluation)
