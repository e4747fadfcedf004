"""Train with Detectron2's DefaultTrainer, and with this project's schedule and loader."""

import os

import my_data  # noqa: F401 (registers city_train and city_val)
from detectron2.config import get_cfg
from detectron2.engine import DefaultTrainer

from ocr_panoptic import add_ocr_config
from ocr_panoptic.cli.train_net import Trainer
from ocr_panoptic.engine.optimizer import build_optimizer, build_schedule


class PlainTrainer(DefaultTrainer):
    build_optimizer = staticmethod(build_optimizer)
    build_lr_scheduler = staticmethod(build_schedule)
    build_train_loader = Trainer.build_train_loader
    build_evaluator = Trainer.build_evaluator


cfg = get_cfg()
add_ocr_config(cfg)
cfg.merge_from_file("city_ocr.yaml")
cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupPolyLR"
cfg.OUTPUT_DIR = "output/plain"
os.makedirs(cfg.OUTPUT_DIR, exist_ok=True)
trainer = PlainTrainer(cfg)
trainer.resume_or_load(resume=False)
trainer.train()
