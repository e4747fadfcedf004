"""
Write a trained model as an ONNX file, and check that the file gives the same results.

    ocr-panoptic export [--config-file RUN] [--weights FILE] --output model.onnx [KEY VALUE ...]

ocr_panoptic/workbench/exporting/run_onnx.py runs the file without PyTorch and Detectron2. --page
also writes a web page that runs the file in a browser, without a server. docs/export.md describes
the page and the file's inputs and outputs. The command needs the packages of the extra "export".
"""

import argparse
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ocr_panoptic.errors import UserError

from .arguments import CommandParser, check_model_is_named, path

PRECISIONS = ("float32", "int8")


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--output", required=True, type=path, help="ONNX file to write (.onnx)")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="number format of the network's weights (default: %(default)s)",
    )
    parser.add_argument("--page", type=path, metavar="FOLDER", help="also write a web page here")
    parser.add_argument(
        "--onnxruntime-web",
        type=path,
        metavar="PACKAGE",
        help="folder or .tgz of the npm package onnxruntime-web (default: downloaded)",
    )
    parser.add_model()
    return parser


def run(args: argparse.Namespace) -> None:
    check_model_is_named(args)
    from ocr_panoptic.formats.files import check_output_folder
    from ocr_panoptic.workbench.exporting import page, run_onnx

    if args.page is None and args.onnxruntime_web is not None:
        raise UserError("--onnxruntime-web also needs --page. Name a folder for the page.")
    if args.page is not None:  # found before the export, which takes minutes
        check_output_folder(args.page, "--page", "Name another folder.")
        runtime = page.find_runtime(args.onnxruntime_web)
    print(_export(args.config_file, args.weights, args.output, args.opts, args.precision))
    print(f"Wrote {args.output} ({args.output.stat().st_size / 2**20:.0f} MiB). To run it:")
    print(f"python {run_onnx.__file__} {args.output} --input IMAGES --output FOLDER")
    if args.page is not None:
        page.write_page(args.page, args.output, runtime)
        print(f"Wrote {args.page}. To run it: open {args.page / 'index.html'} in a browser")


def export(
    run: str | PathLike,
    weights: str | PathLike | None = None,
    *,
    output: str | PathLike,
    precision: str = "float32",
    **keys: Any,
) -> Path:
    """
    Write a trained model as an ONNX file, as ``ocr-panoptic export`` does; return the file's path.

    The file is written only if it gives the same results as the model.

    Args:
        run: a run's folder, a config, or the file of trained weights.
        weights: file of trained weights; by default the last checkpoint in the run's folder, or the
            config's weights.
        output: file to write, which ends in ``.onnx``.
        precision: type of the network's weights, "float32" or "int8".
        **keys: overrides of config keys, such as ``**{"TEST.FLIP": True}``.

    Raises:
        FileNotFoundError, ValueError: an argument is wrong, or the model cannot be exported.
        ModuleNotFoundError: the packages of the extra "export" are missing.
    """
    from ocr_panoptic.config.files import quoted
    from ocr_panoptic.formats.files import path_argument

    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; expected {' or '.join(PRECISIONS)}")
    file = path(path_argument("output", output))
    _export(run, weights, file, quoted(keys), precision)
    return file


def _export(
    run: str | PathLike,
    weights: str | PathLike | None,
    output: Path,
    opts: Mapping[str, Any] | Sequence[Any],
    precision: str,
) -> str:
    """Write the ONNX file, and return a table that compares its results with the model's."""
    if output.suffix != ".onnx" or output.is_dir():
        raise UserError(f"The output is {output}; expected a file name that ends in .onnx.")
    from tabulate import tabulate

    from ocr_panoptic.config.files import overrides_of
    from ocr_panoptic.formats.files import check_output_folder
    from ocr_panoptic.modeling.semantic_logits import semantic_logits
    from ocr_panoptic.predict.run_info import run_info
    from ocr_panoptic.predict.single_image import class_metadata
    from ocr_panoptic.predict.task import task_of
    from ocr_panoptic.predict.trained_model import build_trained_model, trained_model

    check_output_folder(output.parent, "The folder", "Name an output file in another folder.")
    # Export the unoptimized model in float32, since onnxruntime optimizes it again.
    plain = {"TEST.OPTIMIZED": False, "TEST.PRECISION": "float32", "MODEL.DEVICE": "cpu"}
    cfg, start = trained_model(run, weights, {**overrides_of(opts), **plain})
    metadata = class_metadata(cfg)
    # Imported before the model is built, so that a missing package is reported at once.
    from ocr_panoptic.workbench.exporting import describe, export_onnx

    model = build_trained_model(cfg, start)
    info = run_info(cfg, model)
    kept = "config_sha256", "weights_sha256", "ocr_panoptic", "detectron2", "torch"
    made = {key: info[key] for key in kept}

    def logits(network: Any, inputs: list[dict]) -> Any:
        predicted = semantic_logits(network, inputs)
        return predicted[1] if isinstance(predicted, tuple) else predicted  # (coarse, refined)

    description = describe(model.network, metadata, made)
    resize = task_of(cfg).test_augmentation(cfg)
    rows = export_onnx(model, cfg.INPUT.FORMAT, resize, description, output, logits, precision)
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2g")
