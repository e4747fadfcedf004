"""
Compare the training time of a semantic segmentor with and without SOLVER.AMP.ENABLED.

    python benchmarks/mixed_precision.py [--device cpu|cuda] [--config-file CONFIG] [--batch 4] \\
        [--size 112 144] [KEY VALUE ...]

The two precisions are timed alternately on the same random images and labels, without loading data.
Which precision is faster on a CPU depends on the CPU's instruction set; the first printed line
names the CPU.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from detectron2.modeling import build_model
from detectron2.utils.events import EventStorage
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.engine.step import AccumulatingTrainer
from ocr_panoptic.predict.run_info import machine_name
from ocr_panoptic.program import run_program
from studies.measurement import medians, seconds

CONFIG = Path(__file__).parents[1] / "studies/configs/semantic_ocr_R_18_camvid.yaml"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--config-file", default=str(CONFIG))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, nargs=2, default=[112, 144])
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)
    settings = ["MODEL.DEVICE", args.device, "MODEL.SEM_SEG_HEAD.NUM_CLASSES", str(args.classes)]
    cfg = load_config(args.config_file, [*settings, *args.opts])
    for part in (cfg.MODEL.OCR, cfg.MODEL.TIMM, cfg.MODEL.RESNETS):
        part.NORM = part.NORM.replace("SyncBN", "BN")
    print(f"{machine_name(args.device)}, torch {torch.__version__}, {args.batch} x {args.size}")

    generator = torch.Generator().manual_seed(0)
    batch = [
        {
            "image": torch.randint(256, (3, *args.size), generator=generator, dtype=torch.uint8),
            "sem_seg": torch.randint(args.classes, tuple(args.size), generator=generator),
        }
        for _ in range(args.batch)
    ]
    trainers = []
    for amp in (False, True):
        torch.manual_seed(0)
        model = build_model(cfg).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        loader = [batch] * (args.iterations + 3)
        trainers.append(AccumulatingTrainer(model, loader, optimizer, steps=1, amp=amp))
        trainers[-1].iter = 0
    steps = [trainer.run_step for trainer in trainers]
    wall = partial(seconds, device=args.device)
    with EventStorage():
        medians(steps, 3, wall)  # to warm up
        plain, mixed = medians(steps, args.iterations, wall)
    rows = [
        [f"SOLVER.AMP.ENABLED {amp}", f"{1e3 * median:.0f}", median / plain]
        for amp, median in ((False, plain), (True, mixed))
    ]
    print(tabulate(rows, headers=["", "ms per iteration, median", "ratio"], floatfmt=".2f"))


if __name__ == "__main__":
    run_program(main)
