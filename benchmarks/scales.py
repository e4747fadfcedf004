#!/usr/bin/env python
"""
Evaluate trained semantic systems with several values of TEST.SCALES.

For each system, the table shows mIoU and pACC (as computed by ``train_net.py --eval-only``), their
gains over the runs of the first system with the same seeds, and the median CPU time per image.

    python benchmarks/scales.py SYSTEM SYSTEM ... [--scales 1 0.5,1 0.5,1,2]
        [--opts KEY VALUE ...]

A SYSTEM is a folder of runs that ``studies.run`` trained: seed0, seed1, ..., each with config.yaml
and model_final.pth.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from detectron2.config import CfgNode
from tabulate import tabulate
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.evaluators import build_evaluator
from ocr_panoptic.predict.trained_model import build_trained_model
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.comparing.intervals import Interval, gain_text
from train_net import Trainer

METRICS = ("mIoU", "pACC")


def scales(text: str) -> list[float]:
    return [float(scale) for scale in text.split(",")]


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("systems", nargs="+", type=Path, metavar="SYSTEM")
    parser.add_argument("--scales", nargs="+", type=scales, default=[[1.0], [0.5, 1], [0.5, 1, 2]])
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE ...")
    return parser.parse_args(argv)


def config_of(run: Path, test_scales: Sequence[float], opts: list[str]) -> CfgNode:
    weights = ["MODEL.WEIGHTS", str(run / "model_final.pth"), "MODEL.DEVICE", "auto"]
    cfg = load_config(str(run / CONFIG), [*weights, "TEST.SCALES", str(list(test_scales)), *opts])
    complete_config(cfg)
    return cfg


def measure(cfg: CfgNode) -> dict[str, float]:
    """Evaluate a model; return its mIoU, its pACC, and its median CPU time per image ("CPU ms")."""
    name, model = cfg.DATASETS.TEST[0], build_trained_model(cfg)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        evaluator = build_evaluator(cfg, name, Path(folder))
        evaluator.reset()
        for inputs in tqdm(Trainer.build_test_loader(cfg, name), unit="image", disable=None):
            start = time.process_time()
            with torch.inference_mode():
                outputs = model(inputs)
            times.append(time.process_time() - start)
            evaluator.process(inputs, outputs)
        found = evaluator.evaluate()["sem_seg"]
    return {key: found[key] for key in METRICS} | {"CPU ms": 1000 * statistics.median(times)}


def row(name: str, scales: Sequence[float], runs: dict[str, dict], base: dict[str, dict]) -> list:
    """Return a table row: the runs' means, and gains over the ``base`` runs with equal seeds."""
    cells: list = [name, ", ".join(f"{scale:g}" for scale in scales), len(runs)]
    for metric in METRICS:
        cells.append(f"{statistics.mean(run[metric] for run in runs.values()):.2f}")
        pairs = [run[metric] - base[seed][metric] for seed, run in runs.items() if seed in base]
        cells.append("" if runs is base or not pairs else gain_text(Interval.of(pairs)))
    return [*cells, f"{statistics.median(run['CPU ms'] for run in runs.values()):.0f}"]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    table = []
    for test_scales in args.scales:
        found: dict[Path, dict[str, dict]] = {}
        for system in args.systems:
            runs = sorted(path.parent for path in system.glob("seed*/model_final.pth"))
            if not runs:
                raise FileNotFoundError(
                    f"{system} has no seed*/model_final.pth: name the folder of a system that "
                    "studies.run has trained"
                )
            found[system] = {
                run.name: measure(config_of(run, test_scales, args.opts)) for run in runs
            }
            table.append(row(system.name, test_scales, found[system], found[args.systems[0]]))
            print(table[-1], flush=True)
    gains = [cell for metric in METRICS for cell in (metric, "gain")]
    header = ["system", "scales", "runs", *gains, "CPU ms"]
    print(tabulate(table, header, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    run_program(main)
