"""The report of a run, made from its files, its model and its data set."""

import logging
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from torch import nn

from ocr_panoptic.engine.config_files import load_config
from ocr_panoptic.engine.run_info import weights_sha256
from ocr_panoptic.engine.single_image import class_metadata
from ocr_panoptic.engine.task import task_of
from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.panoptic_truth import PanopticTruth
from ocr_panoptic.evaluation.stored import (
    StoredEvaluation,
    evaluation_folder,
    image_scores_file,
    read_evaluation,
    read_table,
)
from ocr_panoptic.formats.config_files import values_by_key
from ocr_panoptic.formats.run_folder import CONFIG, read_training_log
from ocr_panoptic.progress import with_progress

from .figures import ImageFigures, image_figures
from .inspection import Inspector
from .report import png_source, ranked_images, render_report
from .scene import PanopticMap, panoptic_truth, semantic_truth

logger = logging.getLogger(__name__)


def build_report(cfg: CfgNode, config_file: str, num_images: int, num_ranked: int) -> str:
    """
    Return the page about a run that was evaluated on DATASETS.TEST[0].

    Args:
        cfg: completed config with trained MODEL.WEIGHTS.
        config_file: origin of the config, for the page's text.
        num_images: number of images to show, evenly spread over the data set.
        num_ranked: number of worst images to show, and also of best images.
    """
    metadata = class_metadata(cfg)
    folder = evaluation_folder(cfg.OUTPUT_DIR, metadata.name)
    evaluation = read_evaluation(folder)
    log = read_training_log(cfg.OUTPUT_DIR)
    if not log:
        logger.warning("No training log in %s; the report has no loss curves", cfg.OUTPUT_DIR)
    model = build_trained_model(cfg)
    _check_evaluated(cfg, evaluation, model)
    records, inspector = DatasetCatalog.get(metadata.name), Inspector(cfg, model)
    is_panoptic = "panoptic_seg" in evaluation.results
    segments = PanopticTruth(metadata) if is_panoptic else None

    def figures(record: dict[str, Any], with_regions: bool) -> ImageFigures:
        truth: PanopticMap | np.ndarray
        if segments is not None:
            truth = panoptic_truth(segments[record["image_id"]], metadata)
        else:
            truth = semantic_truth(record, metadata)
        name = Path(record["file_name"]).name
        return image_figures(name, inspector(record), truth, metadata, with_regions)

    places = np.linspace(0, len(records) - 1, min(num_images, len(records))).round().astype(int)
    shown = with_progress([records[place] for place in places], "pictures")
    images = [figures(record, with_regions=True) for record in shown]

    task, metric = ("panoptic_seg", "PQ") if is_panoptic else ("sem_seg", "mIoU")
    ranking = ranked_images(read_table(image_scores_file(folder, task)), metric, num_ranked)
    by_name = {record["file_name"]: record for record in records}
    for place, image in enumerate(with_progress(ranking, "worst and best")):
        if image.file_name in by_name:  # regions would be most of the page
            drawn = figures(by_name[image.file_name], with_regions=False)
            ranking[place] = replace(image, figures=drawn)
        else:
            logger.warning(
                "%s was evaluated but is no longer in %s", image.file_name, metadata.name
            )

    confusion = folder / "confusion_matrix.png"
    has_confusion = not is_panoptic and confusion.is_file()
    iterations = int(max((r["iteration"] for r in log if "total_loss" in r), default=-1)) + 1
    head, scheme = cfg.MODEL.SEM_SEG_HEAD.NAME, cfg.MODEL.CONTEXT.NAME
    if head not in ("OCRSemSegFPNHead", "ContextSemSegHead"):
        scheme = "none"  # Detectron2's own head
    return render_report(
        title=task_of(cfg).title + ("" if scheme == "none" else f" + {scheme}"),
        description=f"{cfg.MODEL.META_ARCHITECTURE} with "
        + ("no context scheme" if scheme == "none" else f"the context scheme {scheme}")
        + f" ({head}). Trained on {', '.join(cfg.DATASETS.TRAIN)}"
        + (f" for {iterations} iterations" if iterations else "")
        + f", evaluated on the {len(records)} images of {metadata.name}.",
        dataset=metadata.name,
        evaluation=evaluation,
        training_log=log,
        images=images,
        metadata=metadata,
        settings={
            **{k.replace("_", " "): v for k, v in evaluation.run.items() if v not in (None, "")},
            "config": config_file,
            "semantic head": head,
            "context scheme": scheme,
            "weights": cfg.MODEL.WEIGHTS,
            **_settings(cfg, folder, log),
        },
        confusion=png_source(confusion.read_bytes()) if has_confusion else "",
        ranking=ranking,
    )


def _check_evaluated(cfg: CfgNode, evaluation: StoredEvaluation, model: nn.Module) -> None:
    """
    Refuse an evaluation of other weights.

    Otherwise the page would mix metrics and pictures of two models.
    """
    evaluated, found = evaluation.run.get("weights_sha256"), weights_sha256(model)
    if evaluated == found:
        return
    folder = evaluation_folder(cfg.OUTPUT_DIR, cfg.DATASETS.TEST[0])
    weights = "does not say which weights it used"
    if evaluated:
        weights = f"used {evaluation.run['weights']} (SHA-256 {evaluated[:12]}...)"
    raise UserError(
        f"The evaluation in {folder} {weights}; MODEL.WEIGHTS is {cfg.MODEL.WEIGHTS} "
        f"({found[:12]}...). Evaluate these weights first: ocr-panoptic evaluate --config-file "
        f"CONFIG --weights {cfg.MODEL.WEIGHTS} OUTPUT_DIR {cfg.OUTPUT_DIR}"
    )


def _settings(cfg: CfgNode, folder: Path, log: list[dict[str, float]]) -> dict[str, Any]:
    """Return how the run was trained, and the keys that differ from its evaluation."""
    found = {
        "images per iteration": cfg.SOLVER.IMS_PER_BATCH,
        "base learning rate": cfg.SOLVER.BASE_LR,
    }
    if times := [row["time"] for row in log if "time" in row]:
        found["time per iteration"] = f"{median(times):.3g} s (median)"
    now, then = (
        values_by_key(yaml.safe_load(c.dump()))  # turns tuples into lists, also nested
        for c in (cfg, load_config(str(folder / CONFIG), []))
    )
    other = [
        f"{key} {value} (evaluated with {then[key]})"
        for key, value in now.items()
        if key.startswith(("MODEL.", "INPUT.", "TEST."))
        and key not in ("MODEL.WEIGHTS", "MODEL.DEVICE", "MODEL.TRUST_PICKLE")
        and then.get(key, value) != value
    ]
    if other:
        found["pictures with other settings"] = "; ".join(other)
        logger.warning("Pictures and metrics have different settings: %s", "; ".join(other))
    return found
