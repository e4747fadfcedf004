"""How long a training will take on this machine, by its first iterations."""

import tempfile
import time
from itertools import pairwise
from statistics import median

import torch
from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage

from ocr_panoptic.engine.progress import duration
from ocr_panoptic.engine.run_info import machine_name
from ocr_panoptic.engine.trainer import Trainer

TIMED = 3  # iterations, after a first one


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
                torch.cuda.synchronize()
            ends.append(time.perf_counter())
            storage.step()
    each, count = median(b - a for a, b in pairwise(ends)), cfg.SOLVER.MAX_ITER
    return [
        ["", ""],
        ["device", f"{cfg.MODEL.DEVICE} ({machine_name(torch.device(cfg.MODEL.DEVICE).type)})"],
        ["an iteration", f"{each:.3g} s, the median of {TIMED}"],
        ["all", f"{count} iterations: about {duration(each * count)}, evaluations not counted"],
    ]
