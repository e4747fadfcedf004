#!/usr/bin/env python
"""
Train a model with Detectron2's trainer, or evaluate it with --eval-only.

    python train_net.py --config-file CONFIG [--data FILE ...] [--num-gpus N] [--resume [auto]]
        [KEY VALUE ...]
    torchrun --nproc-per-node N train_net.py --config-file CONFIG ...

``ocr-panoptic train`` runs the same code, and plans a config if none is named. To train on other
data or with other metrics, change or subclass the Trainer below (docs/detectron2.md).
"""

import logging

from detectron2.config import CfgNode
from detectron2.evaluation import DatasetEvaluator
from torch.utils.data import DataLoader

from ocr_panoptic.checkpoint.start import Start, find_start
from ocr_panoptic.cli.arguments import (
    CommandParser,
    RunOptions,
    check_config_is_named,
    import_modules,
)
from ocr_panoptic.config.files import load_config, overrides_of
from ocr_panoptic.data.data_file import data_options, read_data_files
from ocr_panoptic.data.faults import faults_listed
from ocr_panoptic.data.loading import build_test_loader
from ocr_panoptic.data.places import cache_folder
from ocr_panoptic.data.training_stream import TrainingStream, build_training_stream
from ocr_panoptic.engine import ResumableTrainer, launch
from ocr_panoptic.engine.setup import locked_folder, prepare_folder, prepare_process
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.stored import evaluation_folder
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.task import evaluation_mapper, task_of
from ocr_panoptic.predict.trained_model import find_model
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.checking.run_check import check_evaluation, check_training


class Trainer(ResumableTrainer):
    """Detectron2's trainer with exact resume, on this project's data, with its metrics."""

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> TrainingStream:
        """Return an endless stream of batches of DATASETS.TRAIN."""
        return build_training_stream(cfg, task_of(cfg).mapper(cfg, True), cfg.MODEL.DEVICE)

    @classmethod
    def build_test_loader(cls, cfg: CfgNode, dataset_name: str) -> DataLoader:
        """Return a loader that yields each image of a data set once."""
        return build_test_loader(cfg, dataset_name, evaluation_mapper(cfg))

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
        """Return the evaluator of a data set, which writes its files below OUTPUT_DIR."""
        folder = evaluation_folder(cfg.OUTPUT_DIR, dataset_name)
        return task_of(cfg).evaluator(cfg, dataset_name, folder)


def setup(args: RunOptions) -> tuple[CfgNode, Start]:
    """
    Return the run's checked and frozen config, and the weights or checkpoint that it starts from.

    Of the run's folder, only the log is written.
    """
    check_config_is_named(args)
    files = read_data_files(args.data)
    overrides = {**data_options(files), **overrides_of(args.opts)}
    if args.eval_only:
        cfg, start = find_model(args.config_file, args.weights, overrides, args.resume)
    else:
        cfg, start = load_config(args.config_file, overrides), None
    trains = not args.eval_only
    prepare_folder(cfg.OUTPUT_DIR, is_new=trains and not (args.resume or args.overwrite))
    complete_config(cfg, training=trains, needs_data=True, start=start, files=files)
    if start:
        check_evaluation(cfg)
    else:
        start = find_start(cfg, args.resume)
        check_training(cfg, start, args.processes())
    if args.deterministic and cfg.SEED < 0:
        raise UserError(f"--deterministic needs a seed, but SEED is {cfg.SEED}. Set SEED to 0.")
    cfg.freeze()
    return cfg, start


def run_process(cfg: CfgNode, start: Start, args: RunOptions) -> dict[str, dict[str, float]] | None:
    """Train or evaluate in one of the run's processes; return the metrics in the main process."""
    prepare_process(cfg, training=not args.eval_only, deterministic=args.deterministic)
    logging.getLogger("ocr_panoptic").debug("Options: %s", args)
    if args.eval_only:
        return Trainer.evaluate(cfg, start)
    with locked_folder(cfg.OUTPUT_DIR):
        trainer = Trainer(cfg)
        trainer.resume_or_load(start)
        return trainer.train()


def main(args: RunOptions) -> dict[str, dict[str, float]] | None:
    """Train or evaluate in all processes; return the metrics (None if only child processes ran)."""
    import_modules(args.imports)
    with faults_listed(cache_folder() / "faults.txt"):
        cfg, start = setup(args)
    processes = args.num_gpus, args.num_machines, args.machine_rank, args.dist_url
    words = cfg, start, args
    return launch(run_process, *processes, args=words, cfg=cfg, imports=args.imports)


if __name__ == "__main__":
    parser = CommandParser(__doc__, RunOptions)
    parser.add_run()
    run_program(main, parser.parse_args())
