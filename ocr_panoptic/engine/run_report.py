"""The report of a run: its files, its model and its data set put together."""

import logging
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, Metadata
from tqdm import tqdm

from ocr_panoptic.visualization import (
    Evaluation,
    ImageFigures,
    PanopticTruth,
    image_figures,
    png_source,
    read_evaluation,
    read_training_log,
    render_report,
    semantic_truth,
)

from .inspection import class_metadata, inspect_record
from .trained_model import build_trained_model

ARCHITECTURES = {
    "PanopticFPN": "Panoptic-FPN",
    "OCRSemanticSegmentor": "Semantic segmentation",
}


def build_report(cfg: CfgNode, config_file: str, num_images: int) -> str:
    """
    Args:
        cfg: of a run that was evaluated on DATASETS.TEST[0]; MODEL.WEIGHTS are the trained ones.
        config_file: what the page says about the config's origin.
        num_images: how many images of the data set are shown, evenly spread over it.

    Returns:
        the page, see :func:`ocr_panoptic.visualization.render_report`.

    Raises:
        FileNotFoundError: OUTPUT_DIR has no evaluation, or weights or annotations are missing.
        ValueError: num_images is not positive, the model is none that the page can show, or the
            weights do not fit.
    """
    if num_images < 1:
        raise ValueError(f"--num-images is {num_images}; at least 1 image is shown")
    if cfg.MODEL.META_ARCHITECTURE not in ARCHITECTURES:
        raise ValueError(
            f"MODEL.META_ARCHITECTURE is {cfg.MODEL.META_ARCHITECTURE}; the report shows what a "
            f"{' or a '.join(ARCHITECTURES)} predicts"
        )
    metadata = class_metadata(cfg)
    dataset = metadata.name
    results = Path(cfg.OUTPUT_DIR) / "inference" / dataset
    evaluation = read_evaluation(results)
    log_file = Path(cfg.OUTPUT_DIR) / "metrics.json"
    log = read_training_log(log_file)
    if not log:
        logging.getLogger(__name__).warning(
            "There is no training log %s; the report has no loss curves", log_file
        )
    records = DatasetCatalog.get(dataset)
    return render_report(
        title=_title(cfg),
        description=_description(cfg, _iterations(log), len(records)),
        dataset=dataset,
        evaluation=evaluation,
        training_log=log,
        images=_images(cfg, records, num_images, metadata),
        metadata=metadata,
        settings=_settings(cfg, config_file, evaluation, log),
        confusion="" if _is_panoptic(cfg) else png_source(results / "confusion_matrix.png"),
    )


def _images(
    cfg: CfgNode, records: list[dict[str, Any]], num_images: int, metadata: Metadata
) -> list[ImageFigures]:
    shown = np.linspace(0, len(records) - 1, min(num_images, len(records))).round().astype(int)
    truth = PanopticTruth(metadata) if _is_panoptic(cfg) else None
    model = build_trained_model(cfg)
    images = []
    for record in tqdm([records[i] for i in shown], desc="Pictures", unit="image"):
        true = semantic_truth(record, metadata) if truth is None else truth[record["image_id"]]
        inspection = inspect_record(cfg, model, record)
        images.append(image_figures(Path(record["file_name"]).name, inspection, true, metadata))
    return images


def _is_panoptic(cfg: CfgNode) -> bool:
    return cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"


def _scheme(cfg: CfgNode) -> str:
    """The context scheme, "none" for Detectron2's own head."""
    ours = ("OCRSemSegFPNHead", "ContextSemSegHead")
    return cfg.MODEL.CONTEXT.NAME if cfg.MODEL.SEM_SEG_HEAD.NAME in ours else "none"


def _title(cfg: CfgNode) -> str:
    name, scheme = ARCHITECTURES[cfg.MODEL.META_ARCHITECTURE], _scheme(cfg)
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
    cfg: CfgNode, config_file: str, evaluation: Evaluation, log: list[dict[str, float]]
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
    rest = {k.replace("_", " "): v for k, v in evaluation.run.items() if v not in (None, "")}
    return rest | settings


def _iterations(log: list[dict[str, float]]) -> int:
    """Those of the training; the evaluation behind it logs under a number of its own."""
    return int(max((row["iteration"] for row in log if "total_loss" in row), default=-1)) + 1
