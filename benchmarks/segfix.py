#!/usr/bin/env python
"""
Evaluate a model's predictions on DATASETS.TEST[0] before and after refinement by SegFix.

Each refined pixel takes the prediction of the pixel to which its offset points. Offsets come from
the ground truth ("oracle") and from trained SegFix models, and are multiplied by each scale. The
model runs once. Its predictions are evaluated as in ``train_net.py --eval-only``.

    python benchmarks/segfix.py --config-file CONFIG --weights FILE \\
        [--segfix FILE ...] [--scales 1 2] [--boundary-distance 5] [--opts KEY VALUE ...]

Each SegFix model's config.yaml must be in the folder of its weights.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from tabulate import tabulate
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.offsets import source_pixels
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.evaluators import build_evaluator
from ocr_panoptic.predict.segfix import load_segfix_config
from ocr_panoptic.predict.trained_model import build_trained_model
from ocr_panoptic.program import run_program
from ocr_panoptic.segfix.refinement import refine_output
from ocr_panoptic.workbench.refining.refine import Offsets, predicted_offsets, true_offsets
from train_net import Trainer

COLUMNS = {
    "panoptic_seg": ("PQ", "SQ", "BoundaryPQ"),
    "sem_seg": ("mIoU", "mBoundaryIoU"),
    "segm": ("AP",),
}


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-file", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--segfix", nargs="*", default=[], type=Path)
    parser.add_argument("--scales", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--boundary-distance", type=int, default=5, help="of the truth's offsets")
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE ...")
    args = parser.parse_args(argv)
    args.opts += ["MODEL.WEIGHTS", args.weights]
    return args


def sources_of(cfg: CfgNode, args: argparse.Namespace) -> dict[str, Offsets]:
    """Return all images' offsets from each source, by the source's name in the printed table."""
    name = cfg.DATASETS.TEST[0]
    found: dict[str, Offsets] = {"oracle": true_offsets(name, args.boundary_distance)}
    files = (Path(record["file_name"]) for record in DatasetCatalog.get(name))
    images = {str(file.with_suffix("")): file for file in files}
    for weights in args.segfix:
        opts = ["MODEL.WEIGHTS", str(weights), "MODEL.DEVICE", cfg.MODEL.DEVICE]
        segfix = load_segfix_config(str(weights.with_name(CONFIG)), opts)
        found[f"SegFix {weights.parent.name}"] = predicted_offsets(segfix, images)
    return found


def measure(cfg: CfgNode, args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    name, model = cfg.DATASETS.TEST[0], build_trained_model(cfg)
    offsets = sources_of(cfg, args)
    with tempfile.TemporaryDirectory() as folder:
        variants = ["none", *(f"{key}, scale {s}" for key in offsets for s in args.scales)]
        evaluators = {key: build_evaluator(cfg, name, Path(folder) / key) for key in variants}
        for evaluator in evaluators.values():
            evaluator.reset()
        for inputs in tqdm(Trainer.build_test_loader(cfg, name), unit="image"):
            with torch.inference_mode():
                outputs = model(inputs)
            evaluators["none"].process(inputs, outputs)
            for key, source in offsets.items():
                image = str(Path(inputs[0]["file_name"]).with_suffix(""))
                found = source[image]()
                for scale in args.scales:
                    sources = torch.from_numpy(source_pixels(found, scale))
                    refined = [refine_output(output, sources) for output in outputs]
                    evaluators[f"{key}, scale {scale}"].process(inputs, refined)
        for key, evaluator in evaluators.items():
            yield key, evaluator.evaluate()


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    results = dict(measure(cfg, args))
    columns = [
        (task, metric)
        for task, metrics in COLUMNS.items()
        for metric in metrics
        if metric in results["none"].get(task, {})
    ]
    rows = [[key, *(found[task][m] for task, m in columns)] for key, found in results.items()]
    header = ["offsets", *(f"{task} {metric}" for task, metric in columns)]
    print(tabulate(rows, header, floatfmt=".2f", tablefmt="github"))


if __name__ == "__main__":
    run_program(main)
