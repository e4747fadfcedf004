"""A trained model over many images, in one or several processes, in one go or after a stop."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import Metadata
from detectron2.utils import comm
from detectron2.utils.file_io import PathManager
from tqdm import tqdm

from ocr_panoptic.checkpoint import fetch_weights
from ocr_panoptic.data.faults import first_few
from ocr_panoptic.engine.agreement import stop_together
from ocr_panoptic.engine.class_names import Classes, classes_of
from ocr_panoptic.engine.config_files import values_by_key
from ocr_panoptic.engine.inputs import ABSENT, Inputs, Item, Read, ahead
from ocr_panoptic.engine.memory import Limit
from ocr_panoptic.engine.outputs import Record, Writer, write_parts
from ocr_panoptic.engine.predictor import Predictor, named
from ocr_panoptic.engine.segfix import refined_by_segfix, segfix_config
from ocr_panoptic.engine.single_image import class_metadata
from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.image_sources import summary

from .folder import (
    LEFT_OUT,
    MISSING,
    Place,
    RecordFile,
    alone_in,
    begin,
    done_items,
    drop_unfinished,
    merge,
    recorded_names,
    write_missing,
    write_reasons,
    writing,
)
from .truth import evaluate_results, find_truth

logger = logging.getLogger(__name__)

# Of the config, what a result depends on, but for the machine and the name of the weights' file.
SECTIONS = ("MODEL", "INPUT", "TEST")
SHOWN = 20  # reasons in the log
NOT_YET = "not done yet"
MACHINE = (
    *("MODEL.WEIGHTS", "MODEL.DEVICE", "MODEL.TRUST_PICKLE", "TEST.ACCUMULATOR_DEVICE"),
    *("TEST.SEGFIX.WEIGHTS", "TEST.SEGFIX.CONFIG_FILE"),
)


@dataclass(frozen=True)
class Options:
    """
    Attributes:
        labels: of the label PNGs, one of :data:`.classes.LABELS`.
        overlays: whether to draw the segments over the images.
        whole_regions: whether images are seen in tiles with the regions of all of the image, see
            :func:`.tile_bands`.
        truth: to compare the results with, see :func:`.truth.find_truth`.
        limit: of the images that are seen at once.
    """

    limit: Limit
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
        ValueError: they do not fit, or the folder holds other files, or results of another
            input or model; regions of the whole image are wanted of a panoptic model.
        OSError: a file cannot be written; what is there is whole, and a repetition goes on.
    """
    if options.whole_regions and cfg.MODEL.META_ARCHITECTURE == "PanopticFPN":
        raise UserError("--whole-regions: is of a semantic model; of a panoptic one leave it out")
    segfix = segfix_config(cfg)
    if options.whole_regions and segfix:
        raise UserError(
            "--whole-regions: of images in tiles, which TEST.SEGFIX.WEIGHTS does not refine; leave "
            "one of them out"
        )
    metadata = class_metadata(cfg)
    classes = classes_of(metadata, options.labels)
    writer = Writer(folder, classes, options.overlays, cfg.INPUT.FORMAT, cfg.INPUT.CHANNELS)
    identity: dict[str, Any] = {}
    with ExitStack() as stack:
        with stop_together():
            if comm.is_main_process():
                fetch_weights(cfg.MODEL.WEIGHTS)
                identity = _identity(cfg, metadata, classes, inputs, options)
                stack.enter_context(alone_in(folder))
                begin(folder, identity)
        with stop_together():
            records = RecordFile(folder, comm.get_rank())
            stack.callback(records.close)
        with stop_together():
            if comm.is_main_process():
                drop_unfinished(folder)
                _tell_left_out(inputs, folder)
        with stop_together():
            truth = options.truth and find_truth(options.truth, inputs, metadata)
        reasons = _predict_rest(cfg, inputs, options, writer, records)
        done = done_items(folder, inputs.items, writer)
        missing = _missing(inputs.items, done, reasons)
        with stop_together():
            if comm.is_main_process():
                write_missing(folder, missing)
                merge(folder, inputs.items, done, classes)
                logger.info("Results of %d images are in %s", len(done), folder)
                _log_others(folder, inputs.items)
                _log_missing(missing, folder)
        if truth:
            evaluate_results(cfg, truth, inputs, done, writer, identity)
    return len(missing)


def _tell_left_out(inputs: Inputs, folder: Path) -> None:
    reasons = [(str(path.relative_to(inputs.entry)), why) for path, why in inputs.left_out.items()]
    write_reasons(folder / LEFT_OUT, reasons)
    if reasons:
        logger.warning("%s %s lists them.", summary(inputs.left_out), folder / LEFT_OUT)


def _predict_rest(
    cfg: CfgNode, inputs: Inputs, options: Options, writer: Writer, records: RecordFile
) -> dict[str, str | None]:
    """Predict the images that have no results; returns why some still have none, by their names:
    None where there is no such image. While it goes on, and where it fails, missing.txt is kept."""
    folder, items = records.folder, inputs.items
    done = done_items(folder, items, writer)
    todo = [item for item in items if item.name not in done]
    if done and comm.is_main_process():
        logger.info("%d of %d images are done already", len(done), len(items))
    comm.synchronize()
    if comm.is_main_process():
        write_missing(folder, [(item, NOT_YET) for item in todo])
    if not todo:
        return {}
    model = refined_by_segfix(cfg, build_trained_model(cfg))
    with stop_together():
        predictor = Predictor(cfg, model, options.limit, options.whole_regions)
    reasons: dict[str, str | None] = {}
    try:
        with stop_together():
            mine = todo[comm.get_rank() :: comm.get_world_size()]
            if mine:
                _predict(predictor, inputs, mine, writer, records, reasons)
    finally:
        if comm.is_main_process():
            done = done_items(folder, items, writer)
            write_missing(folder, _missing(items, done, reasons))
    return {name: why for part in comm.all_gather(reasons) for name, why in part.items()}


def _predict(
    predictor: Predictor,
    inputs: Inputs,
    items: list[Item],
    writer: Writer,
    records: RecordFile,
    reasons: dict[str, str | None],
) -> None:
    folder = records.folder
    bar = tqdm(total=len(items), unit="image", disable=not comm.is_main_process())

    def predictions() -> Iterator[Callable[[], Record]]:
        """Return what writes the results of an image."""
        for item, image in inputs.read(items, writer.image_format, writer.channels):
            in_parts = predictor.sees_parts(image)
            faults = (FileNotFoundError, ValueError) if in_parts else UserError
            try:
                if in_parts:
                    record = write_large(item, image)
                    yield lambda record=record: record
                elif isinstance(image, np.ndarray):
                    yield partial(writer.write, item, image, predictor(item, image))
            except faults as error:
                image = error
            if isinstance(image, Exception) or image is ABSENT:
                reasons[item.name] = None if image is ABSENT else printable(image)
                bar.update()

    def write_large(item: Item, image: Read) -> Record:
        parts = predictor.parts(item, image)
        with writing(folder), named(item):
            return write_parts(writer, item, parts)

    def write(results: Callable[[], Record]) -> Record:
        with writing(folder):
            return results()

    with bar:
        for record in ahead(write, predictions()):
            with writing(folder):
                records.append(record)
            bar.update()


def _missing(
    items: Sequence[Item], done: Mapping[str, Place], reasons: Mapping[str, str | None]
) -> list[tuple[Item, str]]:
    """The items without results, and why."""
    whys = ((item, reasons.get(item.name, NOT_YET)) for item in items)
    return [(item, why) for item, why in whys if item.name not in done and why is not None]


def _log_others(folder: Path, items: Sequence[Item]) -> None:
    others = recorded_names(folder) - {item.name for item in items}
    if others:
        logger.warning(
            "%d images that were predicted before are no longer in the input: %s. Their files stay "
            "in %s; the JSON files leave them out",
            len(others),
            first_few(sorted(others)),
            folder,
        )


def _log_missing(missing: Sequence[tuple[Item, str]], folder: Path) -> None:
    if missing:
        whys = list(dict.fromkeys(why for _, why in missing))
        shown = "\n  ".join(whys[:SHOWN] + ["..."] * (len(whys) > SHOWN))
        logger.error(
            "%d images have no results, see %s:\n  %s", len(missing), folder / MISSING, shown
        )


def _identity(
    cfg: CfgNode, metadata: Metadata, classes: Classes, inputs: Inputs, options: Options
) -> dict[str, Any]:
    """Return what has to be the same for results to belong together."""
    known = json.dumps(asdict(classes), default=np.ndarray.tolist)
    identity = {
        "format": "ocr_panoptic.predictions",
        "input": str(inputs.entry),
        "data_set": metadata.name,
        "classes_sha256": hashlib.sha256(known.encode()).hexdigest(),
        "weights_file_sha256": _sha256(cfg.MODEL.WEIGHTS),
        "labels": options.labels,
        "overlays": options.overlays,
        "whole_regions": options.whole_regions,
        **_settings(cfg),
    }
    if segfix := segfix_config(cfg):
        identity["segfix"] = {
            "weights_file_sha256": _sha256(segfix.MODEL.WEIGHTS),
            **_settings(segfix),
        }
    return identity


def _settings(cfg: CfgNode) -> dict[str, Any]:
    return {
        key: "BN" if value == "SyncBN" else value  # the same at inference
        for section in SECTIONS
        for key, value in values_by_key(cfg[section], f"{section}.").items()
        if key not in MACHINE
    }


def _sha256(weights: str) -> str:
    """Return the hash of a file of weights."""
    path = Path(PathManager.get_local_path(weights.partition("?")[0]))
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
