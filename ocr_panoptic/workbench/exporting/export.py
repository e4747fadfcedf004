"""Exports a trained model in float32 or int8, and describes how the file differs from it."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from tabulate import tabulate

from ocr_panoptic.checkpoint.start import Start
from ocr_panoptic.data.catalog import check_files, register_data_sets
from ocr_panoptic.data.data_file import DataFile
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.pictures import read_picture, reordered
from ocr_panoptic.predict.identity import identity_of_run
from ocr_panoptic.predict.model import Model
from ocr_panoptic.predict.run_info import run_info
from ocr_panoptic.predict.single_image import class_metadata
from ocr_panoptic.predict.sources import find_inputs
from ocr_panoptic.predict.trained_model import build_trained_model, trained_model

from .int8_file import Annotated, Predict, annotated_records, write_int8
from .onnx_file import describe, export_onnx

CALIBRATED = 50
"""Number of images on which the ranges of activations are measured."""
EVALUATED = 200
"""Largest number of validation images on which metrics are compared."""


def export_model(
    cfg: CfgNode,
    start: Start,
    output: Path,
    precision: str = "float32",
    files: Sequence[DataFile] = (),
    photos: str = "",
) -> str:
    """
    Write a trained model as an ONNX file; return a table that compares the file with the model.

    Args:
        cfg: completed config of the model, with TEST.OPTIMIZED False.
        start: facts about the model's weights.
        output: file to write.
        precision: "float32" or "int8".
        files: data files in DATASETS.FILES, if they have been read already.
        photos: for "int8", a folder of photos that replaces the data sets; "" for none.
    """
    if cfg.TEST.SEGFIX.WEIGHTS or cfg.TEST.SLIDING_WINDOW.SIZE:
        raise UserError(
            "TEST.SEGFIX.WEIGHTS or TEST.SLIDING_WINDOW.SIZE is set, but an exported model is one "
            'network that sees the whole image. Set TEST.SEGFIX.WEIGHTS "", and '
            "TEST.SLIDING_WINDOW.SIZE and STRIDE []."
        )
    metadata = class_metadata(cfg)
    images, annotated = [], None
    if precision == "int8":
        images = _photos(photos) if photos else _training_images(cfg, start, files)
        annotated = None if photos else _annotated(cfg)
    model = build_trained_model(cfg, start)
    info = run_info(cfg, model)
    keys = "config_sha256", "weights_sha256", "ocr_panoptic", "detectron2", "torch"
    made = {**{key: info[key] for key in keys}, "precision": precision}

    def write(path: Path) -> list[dict[str, Any]]:
        about = describe(model.network, metadata, made), identity_of_run(cfg, metadata.as_dict())
        return export_onnx(model, cfg, *about, path)

    if precision == "float32":
        return tabulate(write(output), headers="keys", tablefmt="github", floatfmt=".2g")
    optimized = cfg.clone()
    optimized.defrost()
    optimized.TEST.OPTIMIZED = True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "float32.onnx")
        write(file)
        trained = _prediction(Model(optimized, start=start))
        rows, kept = write_int8(file, output, images, trained, annotated, _prediction_of_file)
    headers = ["", "float32", "int8"]
    table = tabulate(rows, headers=headers, tablefmt="github", floatfmt=".3f")
    return f"{table}\nLayers kept in float32 for accuracy: {', '.join(kept) or 'none'}"


def _prediction(model: Model) -> Predict:
    """Return a function that computes the model's output for an image [H, W, 3] RGB."""
    order = model.config.INPUT.FORMAT
    return lambda image: model.output(np.ascontiguousarray(reordered(image, order)))


def _prediction_of_file(file: Path) -> Predict:
    cfg, start = trained_model(str(file))
    return _prediction(Model(cfg, start=start))


def _photos(folder: str) -> list[np.ndarray]:
    return [read_picture(item.source, "RGB") for item in _some(find_inputs(folder).items)]


def _training_images(cfg: CfgNode, start: Start, files: Sequence[DataFile]) -> list[np.ndarray]:
    names = cfg.DATASETS.TRAIN
    fix = "int8 needs some training images: give a data file or a folder of photos with --data"
    if not names:
        raise UserError(f"DATASETS.TRAIN is empty. {fix}.")
    register_data_sets([*files] or cfg.DATASETS.FILES, names, start.classes, same_classes=True)
    try:
        check_files(names)
    except MissingFileError as error:
        raise MissingFileError(f"{error} {fix}.") from error
    records = [record for name in names for record in DatasetCatalog.get(name)]
    return [read_picture(record["file_name"], "RGB") for record in _some(records)]


def _annotated(cfg: CfgNode) -> Annotated | None:
    """Return the annotated validation images, or None if there are none."""
    for name in cfg.DATASETS.TEST:
        try:
            check_files([name])
        except MissingFileError:
            continue
        if records := annotated_records(name):
            return Annotated(name, _some(records, EVALUATED))
    return None


def _some(entries: Sequence[Any], most: int = CALIBRATED) -> list[Any]:
    """Return at most ``most`` entries, drawn with a fixed seed."""
    order = np.random.default_rng(0).permutation(len(entries))[:most]
    return [entries[i] for i in sorted(order)]
