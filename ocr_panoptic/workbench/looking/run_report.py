"""The report of a run: its files, its model and its data set put together."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, Metadata
from torch import nn
from tqdm import tqdm

from ocr_panoptic.engine.config_files import load_config, values_by_key
from ocr_panoptic.engine.run_info import weights_sha256
from ocr_panoptic.engine.single_image import class_metadata
from ocr_panoptic.engine.task import task_of
from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import PanopticTruth
from ocr_panoptic.formats.run_folder import (
    CONFIG,
    StoredEvaluation,
    evaluation_folder,
    image_scores_file,
    read_evaluation,
    read_table,
    read_training_log,
)
from ocr_panoptic.workbench.looking.figures import ImageFigures, image_figures, png_source
from ocr_panoptic.workbench.looking.ranking import RankedImage, ranked_images
from ocr_panoptic.workbench.looking.report import render_report
from ocr_panoptic.workbench.looking.scene import panoptic_truth, semantic_truth

from .inspection import Inspector

logger = logging.getLogger(__name__)


def build_report(cfg: CfgNode, config_file: str, num_images: int, num_ranked: int = 5) -> str:
    """
    Args:
        cfg: of a run that was evaluated on DATASETS.TEST[0]; MODEL.WEIGHTS are the trained ones.
        config_file: what the page says about the config's origin.
        num_images: how many images of the data set are shown, evenly spread over it.
        num_ranked: how many of the worst images, and of the best, are shown; 0 for none.

    Returns:
        the page, see :func:`.render_report`.

    Raises:
        FileNotFoundError: OUTPUT_DIR has no evaluation, or weights or annotations are missing.
        ValueError: num_images is not positive or num_ranked negative, the model is none that the
            page can show, or the weights do not fit, or are others than those that were evaluated.
    """
    if num_images < 1:
        raise UserError(f"--num-images is {num_images}; at least 1 image is shown")
    if num_ranked < 0:
        raise UserError(f"--num-ranked is {num_ranked}; it is a number of images, 0 for none")
    metadata = class_metadata(cfg)
    dataset = metadata.name
    results = evaluation_folder(cfg.OUTPUT_DIR, dataset)
    evaluation = read_evaluation(results)
    log = read_training_log(cfg.OUTPUT_DIR)
    if not log:
        logger.warning(
            "There is no training log in %s; the report has no loss curves", cfg.OUTPUT_DIR
        )
    model = build_trained_model(cfg)
    _check_evaluated(cfg, evaluation, model)
    records = DatasetCatalog.get(dataset)
    panoptic = "panoptic_seg" in evaluation.results
    pictures = _Pictures(Inspector(cfg, model), metadata, panoptic)
    task, metric = ("panoptic_seg", "PQ") if panoptic else ("sem_seg", "mIoU")
    ranking = ranked_images(read_table(image_scores_file(results, task)), metric, num_ranked)
    return render_report(
        title=_title(cfg),
        description=_description(cfg, _iterations(log), len(records)),
        dataset=dataset,
        evaluation=evaluation,
        training_log=log,
        images=pictures.spread(records, num_images),
        metadata=metadata,
        settings=_settings(cfg, config_file, evaluation, log),
        confusion="" if panoptic else png_source(results / "confusion_matrix.png"),
        ranking=pictures.ranked(records, ranking),
    )


def _check_evaluated(cfg: CfgNode, evaluation: StoredEvaluation, model: nn.Module) -> None:
    """Metrics of one model beside the pictures of another would be taken for one."""
    evaluated, found = evaluation.run.get("weights_sha256"), weights_sha256(model)
    if evaluated == found:
        return
    folder = evaluation_folder(cfg.OUTPUT_DIR, cfg.DATASETS.TEST[0])
    of = "does not say which weights it is of"
    if evaluated:
        of = f"is of {evaluation.run['weights']} (SHA-256 {evaluated[:12]}...)"
    raise UserError(
        f"The evaluation in {folder} {of}, and MODEL.WEIGHTS is {cfg.MODEL.WEIGHTS} "
        f"({found[:12]}...). Evaluate these weights first: ocr-panoptic evaluate --config-file "
        f"CONFIG --weights {cfg.MODEL.WEIGHTS} OUTPUT_DIR {cfg.OUTPUT_DIR}"
    )


def _other_settings(cfg: CfgNode) -> list[str]:
    """Keys of model and input that are set otherwise than in the evaluation."""
    file = evaluation_folder(cfg.OUTPUT_DIR, cfg.DATASETS.TEST[0]) / CONFIG
    evaluated = _values(load_config(str(file), [])) if file.is_file() else {}
    return [
        f"{key} {value} (evaluated with {evaluated[key]})"
        for key, value in _values(cfg).items()
        if key.startswith(("MODEL.", "INPUT.", "TEST."))
        and key not in ("MODEL.WEIGHTS", "MODEL.DEVICE", "MODEL.TRUST_PICKLE")
        and evaluated.get(key, value) != value
    ]


def _values(cfg: CfgNode) -> dict[str, Any]:
    return values_by_key(yaml.safe_load(cfg.dump()))  # lists for tuples at every depth


class _Pictures:
    """Draws images of the data set, beside their truth."""

    def __init__(self, inspector: Inspector, metadata: Metadata, panoptic: bool):
        self._inspector, self._metadata = inspector, metadata
        self._truth = PanopticTruth(metadata) if panoptic else None

    def spread(self, records: list[dict[str, Any]], number: int) -> list[ImageFigures]:
        """Some images, evenly spread over the data set."""
        shown = np.linspace(0, len(records) - 1, min(number, len(records))).round().astype(int)
        shown = tqdm([records[i] for i in shown], desc="Pictures", unit="image")
        return [self._figures(record) for record in shown]

    def ranked(
        self, records: list[dict[str, Any]], ranking: Sequence[RankedImage]
    ) -> list[RankedImage]:
        """Inspect images with their pictures, without the regions, which would be most of the
        page."""
        by_name = {record["file_name"]: record for record in records}
        drawn = []
        for image in tqdm(ranking, desc="Worst and best", unit="image"):
            if image.file_name not in by_name:
                logger.warning(
                    "%s: evaluated, and now no image of %s: the page has no picture of it",
                    image.file_name,
                    self._metadata.name,
                )
                drawn.append(image)
                continue
            figures = self._figures(by_name[image.file_name])
            drawn.append(replace(image, figures=replace(figures, regions=[], relation=None)))
        return drawn

    def _figures(self, record: dict[str, Any]) -> ImageFigures:
        if self._truth is None:
            true = semantic_truth(record, self._metadata)
        else:
            true = panoptic_truth(self._truth[record["image_id"]], self._metadata)
        inspection = self._inspector(record)
        return image_figures(Path(record["file_name"]).name, inspection, true, self._metadata)


def _scheme(cfg: CfgNode) -> str:
    """The context scheme, "none" for Detectron2's own head."""
    ours = ("OCRSemSegFPNHead", "ContextSemSegHead")
    return cfg.MODEL.CONTEXT.NAME if cfg.MODEL.SEM_SEG_HEAD.NAME in ours else "none"


def _title(cfg: CfgNode) -> str:
    name, scheme = task_of(cfg).title, _scheme(cfg)
    return name if scheme == "none" else f"{name} + {scheme}"


def _description(cfg: CfgNode, iterations: int, num_images: int) -> str:
    scheme = _scheme(cfg)
    head = (
        f"{cfg.MODEL.META_ARCHITECTURE} with "
        + ("no context scheme" if scheme == "none" else f"the context scheme {scheme}")
        + f" ({cfg.MODEL.SEM_SEG_HEAD.NAME})."
    )
    trained = f"Trained on {', '.join(cfg.DATASETS.TRAIN)}"
    trained += f" for {iterations} iterations" if iterations else ""
    return f"{head} {trained}, evaluated on the {num_images} images of {cfg.DATASETS.TEST[0]}."


def _settings(
    cfg: CfgNode, config_file: str, evaluation: StoredEvaluation, log: list[dict[str, float]]
) -> dict[str, Any]:
    settings = {
        "config": config_file or "defaults",
        "semantic head": cfg.MODEL.SEM_SEG_HEAD.NAME,
        "context scheme": _scheme(cfg),
        "weights": cfg.MODEL.WEIGHTS,
        "images per iteration": cfg.SOLVER.IMS_PER_BATCH,
        "base learning rate": cfg.SOLVER.BASE_LR,
    }
    if _iterations(log):
        settings["iterations"] = _iterations(log)
    times = [row["time"] for row in log if "time" in row]
    if times:
        settings["time per iteration"] = f"{median(times):.3g} s (median)"
    if other := _other_settings(cfg):
        settings["pictures with other settings"] = "; ".join(other)
        logger.warning("The pictures are not made as the metrics were: %s", "; ".join(other))
    rest = {k.replace("_", " "): v for k, v in evaluation.run.items() if v not in (None, "")}
    return rest | settings


def _iterations(log: list[dict[str, float]]) -> int:
    """Return the rows of the training; the evaluation after it logs under a number of its own."""
    return int(max((row["iteration"] for row in log if "total_loss" in row), default=-1)) + 1
