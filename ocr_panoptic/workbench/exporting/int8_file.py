"""Writes an ONNX file that computes in 8 bits, if it is faster and its results hold."""

import logging
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog

from ocr_panoptic.data.metadata import PANOPTIC, SEMANTIC
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.formats.labels import has_labels
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.predict.run_info import cpu_has, machine_name
from ocr_panoptic.predict.run_onnx import Model, Prediction

from .parity import match_segments
from .quantizing import layer_errors, measure_grids, quantize

logger = logging.getLogger(__name__)

LARGEST_LOSS = 0.3
"""Largest allowed loss of PQ, PQ_th and mIoU, in points."""
LEAST_SHARE = 0.95
"""Least share of pixels with equal labels and in equal segments, if there are no annotations."""
KEPT_SHARES = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Shares of the layers that stay in float32, the worst first, until the results hold."""
TIMED = 5
"""Number of images on which both files are timed."""
FAST = ("avx512_vnni", "avx_vnni", "asimddp", "i8mm")
"""Flags of processors with instructions for products of 8-bit numbers."""

Predict = Callable[[np.ndarray], Mapping[str, Any]]


class Annotated(NamedTuple):
    """Annotated images: the name of their data set, and their records."""

    name: str
    records: Sequence[dict]


def write_int8(
    file: Path,
    output: Path,
    images: Sequence[np.ndarray],
    model: Predict,
    annotated: Annotated | None,
    file_outputs: Callable[[Path], Predict],
) -> tuple[list[list], list[str]]:
    """
    Write a file that computes in 8 bits, and compare it with the float32 file and the model.

    If the results do not hold, the layers with the largest errors stay in float32. UserError is
    raised if they still do not hold, or if the file is not faster.

    Args:
        file: ONNX file in float32.
        output: file to write.
        images: images for the ranges of the activations, each uint8 [H, W, 3] RGB.
        model: returns the output of the model in PyTorch for an image, as an InferenceModel does.
        annotated: validation images; None if there are no annotations.
        file_outputs: returns such a function for an ONNX file.

    Returns:
        rows of a table (what is compared, its value in float32 and in 8 bits), and the names of the
        layers that stay in float32
    """
    logger.info("Measuring the ranges of activations on %d images", len(images))
    grids = measure_grids(file, images)
    judge: _Scores | _Agreement
    if not (annotated and (judge := _Scores(model, annotated)).of_model):
        judge = _Agreement(model, images[: 4 * TIMED])
    kept: list[str] = []
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, "int8.onnx")
        for share in KEPT_SHARES:
            if share:
                errors = errors or layer_errors(file, grids, images[:TIMED])
                worst = sorted(errors, key=lambda name: -errors[name])
                kept = worst[: math.ceil(share * len(worst))]
            quantize(file, temporary, grids, kept)
            rows, faults = judge(file_outputs(temporary))
            if not faults:
                break
            logger.info("With %d layers in float32: %s", len(kept), "; ".join(faults))
        else:
            raise UserError(
                f"{output} was not written: with {len(kept)} of {len(errors)} layers in float32, "
                f"{'; '.join(faults)}. Use --precision float32."
            )
        times = _times([file, temporary], images)
        check_speed(output, *times)
        with replacing(output) as place:
            shutil.copyfile(temporary, place)
        sizes = [path.stat().st_size / 2**20 for path in (file, temporary)]
    return [*rows, ["CPU seconds per image, 1 thread", *times], ["MiB", *sizes]], kept


class _Scores:
    """Compares the metrics of a file with those of the model that are defined, ``of_model``."""

    def __init__(self, model: Predict, annotated: Annotated):
        self._annotated = annotated
        logger.info("Evaluating the model on %d images", len(annotated.records))
        scores = evaluate(model, annotated)
        self.of_model = {key: value for key, value in scores.items() if not math.isnan(value)}

    def __call__(self, predict: Predict) -> tuple[list[list], list[str]]:
        """Return rows of a table, and a text about each metric that is too low."""
        logger.info("Evaluating the file")
        found = evaluate(predict, self._annotated)
        images = len(self._annotated.records)
        title = f", {images} images of {self._annotated.name}"
        rows = [[f"{key}{title}", value, found[key]] for key, value in self.of_model.items()]
        faults = [
            f"{key} is {found[key]:.2f} instead of {value:.2f} (allowed loss: {LARGEST_LOSS})"
            for key, value in self.of_model.items()
            if not value - found[key] <= LARGEST_LOSS  # also if the file's metric is NaN
        ]
        return rows, faults


class _Agreement:
    """Compares the labels and segments of a file with the model's, without annotations."""

    def __init__(self, model: Predict, images: Sequence[np.ndarray]):
        self._images, self._expected = images, [_plain(model(image)) for image in images]

    def __call__(self, predict: Predict) -> tuple[list[list], list[str]]:
        """Return rows of a table, and a text about each share that is too low."""
        shares: dict[str, list[float]] = {}
        for image, expected in zip(self._images, self._expected, strict=True):
            found = _plain(predict(image))
            share = float((found["labels"] == expected["labels"]).mean())
            shares.setdefault("equal labels", []).append(share)
            if "ids" in found:
                segments = [(x["ids"], x["segments"]) for x in (found, expected)]
                shares.setdefault("equal segments", []).append(match_segments(*segments)[0])
        means = {key: statistics.fmean(values) for key, values in shares.items()}
        rows = [[f"{key}, {len(self._images)} images", 1.0, mean] for key, mean in means.items()]
        faults = [
            f"{key} in {100 * mean:.1f} % of the pixels (expected at least {100 * LEAST_SHARE:g} %)"
            for key, mean in means.items()
            if mean < LEAST_SHARE
        ]
        return rows, faults


def _plain(output: Mapping[str, Any]) -> Prediction:
    found = {"labels": output["labels"].numpy()}
    if "panoptic_seg" in output:
        ids, segments = output["panoptic_seg"]
        found |= {"ids": ids.numpy(), "segments": segments}
    return found


def evaluate(predict: Predict, annotated: Annotated) -> dict[str, float]:
    """Return PQ and PQ_th (panoptic data) and mIoU of annotated images, in percent."""
    name, records = annotated
    evaluators: list[Any] = [SemSegEvaluator(name)]
    if MetadataCatalog.get(name).get("evaluator_type") == PANOPTIC:
        evaluators.append(PanopticEvaluator(name))
    for record in records:
        output = predict(read_picture(record["file_name"], "RGB"))
        for evaluator in evaluators:
            evaluator.process([record], [output])
    found = {
        k: v for e in evaluators for scores in e.evaluate().values() for k, v in scores.items()
    }
    return {key: found[key] for key in ("PQ", "PQ_th", "mIoU") if key in found}


def annotated_records(name: str) -> list[dict]:
    """Return the records of a data set that have the annotations that :func:`evaluate` needs."""
    metadata, records = MetadataCatalog.get(name), DatasetCatalog.get(name)
    kind = metadata.get("evaluator_type")
    if kind == PANOPTIC and not (
        metadata.get("panoptic_json") or "pan_seg_file_name" in records[0]
    ):
        return []
    return records if kind in (PANOPTIC, SEMANTIC) and all(map(has_labels, records)) else []


def _times(files: Collection[Path], images: Sequence[np.ndarray]) -> list[float]:
    """Return the median CPU seconds of each file for an image, in one thread."""
    models = [Model(file, threads=1, providers=["CPUExecutionProvider"]) for file in files]
    taken: list[list[float]] = [[] for _ in models]
    for image in [*images[:1], *images[:TIMED]]:  # the first warms up
        for model, times in zip(models, taken, strict=True):
            start = time.process_time()
            model(image)
            times.append(time.process_time() - start)
    return [statistics.median(times[1:]) for times in taken]


def check_speed(output: Path, float32: float, int8: float) -> None:
    """Refuse a file in 8 bits that takes at least the seconds of the file in float32."""
    if int8 < float32:
        return
    has = "has" if cpu_has(*FAST) else "lacks"
    raise UserError(
        f"{output} was not written: on this processor ({machine_name('cpu')}), int8 takes "
        f"{int8:.2f} s per image and float32 {float32:.2f} s. int8 is fast only with instructions "
        "for products of 8-bit numbers (VNNI on x86, dotprod on ARM); this processor "
        f"{has} them. Use --precision float32, or export on the processor that will run the file."
    )
