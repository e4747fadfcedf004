"""How long a training will take on this machine, by its first iterations, and whether its data come
in time for GPUs."""

import copy
import math
import tempfile
import time
from itertools import pairwise
from statistics import median

import torch
from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage

from ocr_panoptic.data.parallel import usable_cores
from ocr_panoptic.engine.progress import duration
from ocr_panoptic.engine.run_info import machine_name
from ocr_panoptic.engine.task import task_of, training_records
from ocr_panoptic.engine.trainer import Trainer

TIMED = 3  # iterations, after a first one
IMAGES = 8  # that are loaded, after a first one
V100 = 11.4e12
"""Operations a second in float32: those of Panoptic-FPN, by the times of Detectron2's model zoo,
0.302 s an iteration with R-50 and 0.392 s with R-101."""


def measure_time(cfg: CfgNode, processes: int) -> list[list]:
    """
    Train a few iterations of random weights, and keep nothing.

    Args:
        cfg: completed for this machine, with the batch of all processes.
        processes: of the run, of which this one does its share.

    Returns:
        rows of cells, the first of them the headers
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SOLVER.IMS_PER_BATCH //= processes
    with tempfile.TemporaryDirectory() as cfg.OUTPUT_DIR, EventStorage() as storage:
        trainer = Trainer(cfg)
        trainer.storage, ends = storage, []
        for trainer.iter in range(TIMED + 1):
            trainer.run_step()
            if cfg.MODEL.DEVICE.startswith("cuda"):
                torch.cuda.synchronize(cfg.MODEL.DEVICE)
            ends.append(time.perf_counter())
            storage.step()
    each, count = median(b - a for a, b in pairwise(ends)), cfg.SOLVER.MAX_ITER
    return [
        ["", ""],
        ["device", f"{cfg.MODEL.DEVICE} ({machine_name(cfg.MODEL.DEVICE)})"],
        ["an iteration", f"{each:.3g} s, the median of {TIMED}"],
        ["all", f"{count} iterations: about {duration(each * count)}, evaluations not counted"],
    ]


def measure_data(cfg: CfgNode, processes: int, operations: int, gpu_seconds: float) -> list[list]:
    """
    Load some images as a worker of the training does.

    Args:
        cfg: as in :func:`measure_time`.
        processes: of the run, one a GPU.
        operations: of an iteration in one of them; 0 where they were not counted.
        gpu_seconds: that an iteration takes a GPU; 0 for what a V100 takes in float32.

    Returns:
        rows of cells, the first of them the headers
    """
    records, mapper, ends = training_records(cfg), task_of(cfg).mapper(cfg, True), []
    for i in range(IMAGES + 1):
        mapper(copy.deepcopy(records[i * len(records) // (IMAGES + 1)]))
        ends.append(time.perf_counter())
    each, images = median(b - a for a, b in pairwise(ends)), cfg.SOLVER.IMS_PER_BATCH // processes
    rows = [["", ""], ["a worker", f"{1 / each:.3g} images a second, by the median of {IMAGES}"]]
    source = "--gpu-seconds" if gpu_seconds else "a V100 in float32, estimated; --gpu-seconds S"
    if seconds := gpu_seconds or operations / V100:
        wanted, found = math.ceil(each * images / seconds), cfg.DATALOADER.NUM_WORKERS
        advice = f": set it to {wanted}" if found < wanted else ""
        rows += [
            ["a GPU", f"{seconds:.2g} s an iteration of {images} image(s) ({source})"],
            ["it needs", f"{wanted} worker(s); DATALOADER.NUM_WORKERS is {found}{advice}"],
            ["in all", f"{wanted * processes} worker(s); usable here are {usable_cores()} cores"],
        ]
    return rows
