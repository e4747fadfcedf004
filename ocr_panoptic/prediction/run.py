"""A trained model over many images, in one or several processes, in one go or after a stop."""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.file_io import PathManager
from tqdm import tqdm

from ocr_panoptic.checkpoint import fetch_weights
from ocr_panoptic.engine.agreement import stop_together
from ocr_panoptic.engine.config_files import values_by_key
from ocr_panoptic.engine.single_image import class_metadata
from ocr_panoptic.engine.trained_model import build_trained_model

from .ahead import ahead
from .classes import classes_of
from .folder import (
    RecordFile,
    begin,
    done_items,
    drop_unfinished_lines,
    merge,
    write_missing,
)
from .inputs import Inputs, Item
from .outputs import Record, Writer
from .predictor import Predictor
from .truth import evaluate, register_truth

logger = logging.getLogger(__name__)

# Of the config, what a result depends on, but for the machine and the name of the weights' file.
SECTIONS = ("MODEL", "INPUT", "TEST")
MACHINE = ("MODEL.WEIGHTS", "MODEL.DEVICE", "MODEL.TRUST_PICKLE", "TEST.ACCUMULATOR_DEVICE")


@dataclass(frozen=True)
class Options:
    """
    Attributes:
        labels: of the label PNGs, one of :data:`.classes.LABELS`.
        overlays: whether to draw the segments over the images.
        whole_regions: whether images are seen in tiles with the regions of all of the image, see
            :func:`.tile_bands`.
        truth: to compare the results with, see :func:`.truth.register_truth`.
    """

    labels: str = "train"
    overlays: bool = False
    whole_regions: bool = False
    truth: Path | None = None


def predict_all(cfg: CfgNode, inputs: Inputs, folder: Path, options: Options) -> int:
    """
    Predict every image that has no results yet, and write the JSON files of all. Every process
    calls it; they share the images.

    Args:
        cfg: completed; MODEL.WEIGHTS are the trained ones.

    Returns:
        the number of images without results, which ``missing.txt`` and the log name.

    Raises:
        FileNotFoundError: the weights are missing.
        ValueError: they do not fit, or the folder holds other files, or results of another model.
        OSError: a file cannot be written; what is there is whole, and a repetition goes on.
    """
    metadata = class_metadata(cfg)
    classes = classes_of(metadata, options.labels)
    writer = Writer(folder, classes, options.overlays, cfg.INPUT.FORMAT)
    with stop_together():
        if comm.is_main_process():
            fetch_weights(cfg.MODEL.WEIGHTS)
            begin(folder, _identity(cfg, options))
    with stop_together():
        records = RecordFile(folder, comm.get_rank())
    with stop_together():
        if comm.is_main_process():
            drop_unfinished_lines(folder)
    truth = options.truth and register_truth(options.truth, inputs, folder, metadata)
    done = done_items(folder, inputs.items, writer)
    todo = [item for item in inputs.items if item.name not in done]
    if done and comm.is_main_process():
        logger.info("%d of %d images are done already", len(done), len(inputs.items))
    comm.synchronize()
    if comm.is_main_process():
        write_missing(folder, [(item, "not done yet") for item in todo])
    mine = todo[comm.get_rank() :: comm.get_world_size()]
    unreadable: list[tuple[Item, str]] = []
    predictor = Predictor(cfg, build_trained_model(cfg), options.whole_regions) if todo else None
    try:
        with stop_together():
            if mine:
                _predict(predictor, inputs, mine, writer, records, unreadable)
    finally:
        records.close()
        if comm.is_main_process():
            done = done_items(folder, inputs.items, writer)
            reasons = {item.name: why for item, why in unreadable}
            missing = [
                (item, reasons.get(item.name, "not done yet"))
                for item in inputs.items
                if item.name not in done
            ]
            write_missing(folder, missing)
    reasons = {item.name: why for found in comm.all_gather(unreadable) for item, why in found}
    with stop_together():
        if comm.is_main_process():
            missing = [(item, reasons[item.name]) for item in inputs.items if item.name in reasons]
            write_missing(folder, missing)
            merge(folder, inputs.items, done, classes)
    if truth:
        evaluate(cfg, truth, inputs, done_items(folder, inputs.items, writer), writer, classes)
    if comm.is_main_process():
        logger.info("Results of %d images are in %s", len(inputs.items) - len(reasons), folder)
        for why in reasons.values():
            logger.error("%s", why)
        if reasons:
            logger.error("%d of %d images have no results", len(reasons), len(inputs.items))
    return len(reasons)


def _predict(
    predictor: Predictor,
    inputs: Inputs,
    items: list[Item],
    writer: Writer,
    records: RecordFile,
    unreadable: list[tuple[Item, str]],
) -> None:
    bar = tqdm(total=len(items), unit="image", disable=not comm.is_main_process())

    def predictions() -> Iterator[Callable[[], Record]]:
        """What writes the results of an image."""
        for item, image in inputs.read(items, writer.image_format):
            if image is None:
                try:
                    record = writer.write_bands(item, *predictor.bands(item.source))
                except ValueError as error:
                    image = error
                else:
                    yield lambda record=record: record
            elif isinstance(image, np.ndarray):
                yield partial(writer.write, item, image, predictor(image))
            if isinstance(image, Exception):
                unreadable.append((item, str(image)))
                bar.update()

    written = 0
    with bar:
        try:
            for record in ahead(lambda write: write(), predictions()):
                records.append(record)
                written += 1
                bar.update()
        except OSError as error:
            free = shutil.disk_usage(records.folder).free / 2**20
            raise OSError(
                f"{records.folder}: a result could not be written ({error}); {free:.0f} MiB are "
                f"free there. {written} images of this run are done, and their files whole; "
                "missing.txt names the others. Make room, and repeat the command: it goes on."
            ) from error


def _identity(cfg: CfgNode, options: Options) -> dict[str, Any]:
    values = {
        key: "BN" if value == "SyncBN" else value  # the same at inference
        for section in SECTIONS
        for key, value in values_by_key(cfg[section], f"{section}.").items()
        if key not in MACHINE
    }
    weights = Path(PathManager.get_local_path(cfg.MODEL.WEIGHTS.partition("?")[0]))
    digest = hashlib.sha256()
    with open(weights, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return {
        "format": "ocr_panoptic.predictions",
        "weights_sha256": digest.hexdigest(),
        "labels": options.labels,
        "overlays": options.overlays,
        "whole_regions": options.whole_regions,
        **values,
    }
