#!/usr/bin/env python
"""
Train or evaluate a model of this project, with Detectron2's usual flags:

    python train_net.py --config-file CONFIG [--num-gpus N] [--resume [auto]] [KEY VALUE ...]
    python train_net.py --config-file CONFIG --eval-only MODEL.WEIGHTS FILE
    torchrun --nproc-per-node N train_net.py --config-file CONFIG
"""

import argparse

from ocr_panoptic.engine import Trainer, TrainingArguments, launch, run_program, setup


def main(args: argparse.Namespace) -> dict | None:
    cfg, written = setup(args)
    if args.eval_only:
        return Trainer.evaluate(cfg)
    trainer = Trainer(cfg, written)
    trainer.resume_or_load(resume=args.resume)
    return trainer.train()


def argument_parser() -> argparse.ArgumentParser:
    parser = TrainingArguments()
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="repeatable results on one machine, from a SEED of the config; slower on a GPU",
    )
    return parser


if __name__ == "__main__":
    run_program(launch, main, argument_parser().parse_args())
