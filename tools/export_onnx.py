#!/usr/bin/env python
"""
Write a trained model as an ONNX file, and check that the file computes what the model does.

    python tools/export_onnx.py --config-file CONFIG --weights FILE --output model.onnx \\
        [KEY VALUE ...]

ocr_panoptic/export/run_onnx.py runs the file, without PyTorch and Detectron2; docs/export.md says
how, and what the file takes and gives. Needs the packages of the extra "export".
"""

import argparse
from pathlib import Path

from detectron2.config import CfgNode
from tabulate import tabulate
from torch import Tensor, nn

from ocr_panoptic.engine import build_trained_model, complete_config, load_config, run_program
from ocr_panoptic.engine.run_info import run_info
from ocr_panoptic.engine.single_image import class_metadata
from ocr_panoptic.engine.task import task_of


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-file", required=True, help="the config of the run")
    parser.add_argument("--weights", required=True, help="the trained model")
    parser.add_argument("--output", required=True, type=Path, help="the file to write, *.onnx")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)
    if args.output.suffix != ".onnx" or args.output.is_dir():
        parser.error(f"--output {args.output}: name a file that ends in .onnx")
    return args


def export(cfg: CfgNode, model: nn.Module, path: Path) -> str:
    """
    Args:
        cfg: a completed config, of a model on the CPU.

    Returns:
        the table of the comparison.
    """
    from ocr_panoptic.export import describe, export_onnx

    task, run = task_of(cfg), run_info(cfg, model)
    kept = "config_sha256", "weights_sha256", "ocr_panoptic", "detectron2", "torch"
    made = {key: run[key] for key in kept}

    def logits(network: nn.Module, inputs: list[dict]) -> Tensor:
        predicted = task.semantic_logits(network, inputs)
        return predicted[1] if isinstance(predicted, tuple) else predicted  # coarse, refined

    description = describe(model, class_metadata(cfg), task.test_augmentation(cfg), made)
    rows = export_onnx(model, cfg.INPUT.FORMAT, description, path, logits)
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2g")


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    # The model as it is trained, in float32: onnxruntime has optimizations of its own.
    plain = ["TEST.OPTIMIZED", "False", "TEST.PRECISION", "float32", "MODEL.DEVICE", "cpu"]
    cfg = load_config(args.config_file, [*args.opts, *plain, "MODEL.WEIGHTS", args.weights])
    complete_config(cfg)
    class_metadata(cfg)  # what it lacks, and the extra's packages, show before a model is built
    from ocr_panoptic.export import run_onnx

    print(export(cfg, build_trained_model(cfg), args.output))
    print(f"Wrote {args.output} ({args.output.stat().st_size / 2**20:.0f} MiB). To run it:")
    runner = Path(run_onnx.__file__)
    print(f"python {runner} {args.output} --input IMAGES --output FOLDER")


if __name__ == "__main__":
    run_program(main)
