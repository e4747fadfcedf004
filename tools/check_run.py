#!/usr/bin/env python
"""
What a training would do, without training: data and epochs, learning rates, parameters, memory of a
GPU, checkpoints, what --resume finds. It needs no GPU, and ends with status 1 where something would
stop the run.

    python tools/check_run.py --config-file CONFIG --num-gpus 8 [--resume] [KEY VALUE ...]
"""

from ocr_panoptic.analysis.run_check import check_run
from ocr_panoptic.engine import complete_config, load_config, run_program
from ocr_panoptic.engine.arguments import TrainingArguments
from ocr_panoptic.engine.setup import check_solver
from ocr_panoptic.engine.trainer import scaled


def main(argv: list[str] | None = None) -> None:
    args = TrainingArguments().parse_args(argv)
    gpus = args.num_gpus * args.num_machines
    cfg = load_config(args.config_file, args.opts)
    cfg.MODEL.DEVICE = "cpu"  # there may be no GPU here; memory is counted for one all the same
    complete_config(cfg, training=True)
    cfg = scaled(cfg, gpus)
    check_solver(cfg, gpus)
    check = check_run(cfg, gpus, resume=args.resume)
    print(check)
    if check.faults:
        raise SystemExit(1)


if __name__ == "__main__":
    run_program(main)
