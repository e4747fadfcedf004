"""
Write a trained model as an ONNX file, and check that the file gives the same results.

    ocr-panoptic export [--config-file RUN] [--weights FILE] --output model.onnx
        [--precision int8 [--data FILE|FOLDER ...]] [KEY VALUE ...]

With --precision int8, most layers compute in 8 bits. The file is written only if it is faster than
float32 on this processor, and if its metrics on the validation images, or its results, hold.

ocr_panoptic/predict/run_onnx.py runs the file without PyTorch and Detectron2. --page also writes a
web page that runs the file in a browser, without a server. docs/export.md describes the page and
the file's inputs and outputs. The command needs the packages of the extra "export".
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
        help="number format of the network's layers (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="FILE",
        help="for int8: data files, or a folder of photos (default: the data of the training run)",
    )
    page = "folder for a web page that runs the ONNX file in a browser"
    parser.add_argument("--page", type=path, metavar="FOLDER", help=page)
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
    from ocr_panoptic.predict import run_onnx
    from ocr_panoptic.workbench.exporting import page

    if args.page is None and args.onnxruntime_web is not None:
        raise UserError("--onnxruntime-web also needs --page. Name a folder for the page.")
    if args.page is not None:  # found before the export, which takes minutes
        check_output_folder(args.page, "--page", "Name another folder.")
        runtime = page.find_runtime(args.onnxruntime_web)
    words = args.output, args.opts, args.precision, args.data
    print(_export(args.config_file, args.weights, *words))
    print(f"Wrote {args.output} ({args.output.stat().st_size / 2**20:.0f} MiB). To run it:")
    print(f"ocr-panoptic predict --weights {args.output} --input IMAGES --output FOLDER, or")
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
    data: str | PathLike | Sequence[str | PathLike] = (),
    **keys: Any,
) -> Path:
    """
    Write a trained model as an ONNX file, as ``ocr-panoptic export`` does; return the file's path.

    The file is written only if it gives the same results as the model. With "int8", its metrics
    may be 0.3 points lower, and it must be faster.

    Args:
        run: a run's folder, a config, or the file of trained weights.
        weights: file of trained weights; by default the last checkpoint in the run's folder, or the
            config's weights.
        output: file to write, which ends in ``.onnx``.
        precision: type of the numbers in the network's layers, "float32" or "int8".
        data: for "int8", data files with training and validation images, or a folder of photos;
            by default, the data of the training.
        **keys: overrides of config keys, such as ``**{"TEST.FLIP": True}``.

    Raises:
        FileNotFoundError, ValueError: an argument is wrong, or the model cannot be exported.
        ModuleNotFoundError: the packages of the extra "export" are missing.
    """
    from ocr_panoptic.config.files import quoted
    from ocr_panoptic.formats.files import as_list, path_argument

    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; expected {' or '.join(PRECISIONS)}")
    file = path(path_argument("output", output))
    _export(run, weights, file, quoted(keys), precision, list(map(str, as_list(data))))
    return file


def _export(
    run: str | PathLike,
    weights: str | PathLike | None,
    output: Path,
    opts: Mapping[str, Any] | Sequence[Any],
    precision: str,
    data: Sequence[str],
) -> str:
    """Write the ONNX file, and return a table that compares its results with the model's."""
    if output.suffix != ".onnx" or output.is_dir():
        raise UserError(f"The output is {output}; expected a file name that ends in .onnx.")
    if data and precision != "int8":
        raise UserError("--data is only used for int8. Add --precision int8, or omit --data.")
    from ocr_panoptic.config.files import overrides_of
    from ocr_panoptic.data.data_file import data_options, read_data_files
    from ocr_panoptic.formats.files import check_output_folder
    from ocr_panoptic.predict.trained_model import trained_model

    check_output_folder(output.parent, "The folder", "Name an output file in another folder.")
    # Export the unoptimized model in float32, since onnxruntime optimizes it again.
    plain = {"TEST.OPTIMIZED": False, "TEST.PRECISION": "float32", "MODEL.DEVICE": "cpu"}
    photos = data[0] if len(data) == 1 and Path(data[0]).is_dir() else ""
    files = read_data_files([] if photos else data)
    overrides = {**data_options(files), **overrides_of(opts), **plain}
    needs_data = precision == "int8" and not photos
    cfg, start = trained_model(run, weights, overrides, files=files, needs_data=needs_data)
    # Imported before the model is built, so that a missing package is reported at once.
    from ocr_panoptic.workbench.exporting.export import export_model

    return export_model(cfg, start, output, precision, files, photos)
