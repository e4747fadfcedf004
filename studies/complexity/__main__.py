"""
Compare parameters, FLOPs, peak memory and time of context schemes (OCR, PPM, ...) on one input.

The printed Markdown table also shows the numbers from table 6 of the OCR paper.

    python -m studies.complexity [--device cpu|cuda] [--size 1,2048,128,128] [--num-classes 150] \\
        [--dtype float32|bfloat16] [--repeats 5] [--json FILE]

With --configs, compare the backbones and semantic heads of several configs on the CPU, for one
image:

    python -m studies.complexity --configs FILE ... [--image-size 800,1216] \\
        [--repeats 5 | --counts-only] [--opts KEY VALUE ...] [--json FILE]
"""

import argparse
import datetime
from pathlib import Path

import torch
from detectron2.config import CfgNode

from ocr_panoptic.config.files import load_config
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import write_json
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.run_info import machine_name
from ocr_panoptic.program import run_program

from ..measurement import sizes
from .backbones import backbone_table, measure_backbones
from .schemes import PAPER, complexity_table, measure, structures_table


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        f"python -m {__package__}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", type=sizes("N", "C", "H", "W"), default=(1, 2048, 128, 128))
    parser.add_argument(
        "--num-classes", type=int, default=150, help="regions of OCR (default 150, as in ADE20K)"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=5, help="timed passes (default 5)")
    parser.add_argument("--configs", nargs="+", help="models whose backbones are compared")
    parser.add_argument("--counts-only", action="store_true", help="of them; nothing is measured")
    parser.add_argument("--opts", nargs="+", default=[], help="KEY VALUE ... of all of them")
    parser.add_argument(
        "--image-size", type=sizes("H", "W"), default=(800, 1216), help="for them (800,1216)"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, but PyTorch finds no GPU; use --device cpu")

    if (args.counts_only or args.opts) and not args.configs:
        parser.error("--counts-only and --opts are about --configs")
    if args.configs:
        return compare_backbones(args)

    # Otherwise 3x3 convolutions would run in TF32, but not 1x1, which are matrix products.
    torch.backends.cudnn.allow_tf32 = False
    dtype = getattr(torch, args.dtype)
    rows = measure(PAPER, args.size, args.num_classes, args.device, dtype, args.repeats)
    print(
        f"Features {list(args.size)}, {args.num_classes} classes, {args.dtype}, on "
        f"{machine_name(args.device)}, PyTorch {torch.__version__}, {datetime.date.today()}.\n"
    )
    print(complexity_table(rows))
    print("\nThe two structures of DANet and CC-Attention:\n")
    print(structures_table(args.size))
    if args.json:
        write_json(args.json, rows, indent=2)


def compare_backbones(args: argparse.Namespace) -> None:
    configs = [(Path(file).stem, model_config(file, args.opts)) for file in args.configs]
    rows = measure_backbones(configs, args.image_size, 0 if args.counts_only else args.repeats)
    print(
        f"One image of {args.image_size[0]}x{args.image_size[1]} pixels, on "
        f"{machine_name('cpu')}, PyTorch {torch.__version__}, {datetime.date.today()}.\n"
    )
    print(backbone_table(rows))
    if args.json:
        write_json(args.json, rows, indent=2)


def model_config(file: str, opts: list[str]) -> CfgNode:
    """
    Load a config with overrides; set the device to the CPU and remove all data sets.

    UserError is raised if the config takes the number of classes from the data.
    """
    cfg = load_config(file, [*opts, *("MODEL.DEVICE", "cpu"), *("DATASETS.TRAIN", "()")])
    cfg.DATASETS.TEST = ()
    complete_config(cfg)
    if cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == 0:
        raise UserError(
            f"{file} has as many classes as its data; say how many: --opts "
            "MODEL.SEM_SEG_HEAD.NUM_CLASSES 19 MODEL.ROI_HEADS.NUM_CLASSES 8"
        )
    return cfg


if __name__ == "__main__":
    run_program(main)
