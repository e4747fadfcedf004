"""The report of a run, made from the run's files, model and data set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog

from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.panoptic_truth import PanopticTruth
from ocr_panoptic.evaluation.stored import (
    evaluation_folder,
    image_scores_file,
    read_evaluation,
    read_table,
)
from ocr_panoptic.formats.run_folder import read_training_log
from ocr_panoptic.predict.run_info import weights_sha256
from ocr_panoptic.predict.single_image import class_metadata
from ocr_panoptic.predict.task import task_of
from ocr_panoptic.predict.trained_model import TrainedModel, build_trained_model
from ocr_panoptic.progress import with_progress

from .figures import ImageFigures, image_figures
from .inspection import HEADS, Inspector
from .report import RankedImage, png_source, render_report, worst_images
from .scene import PanopticMap, panoptic_truth, semantic_truth


def build_report(trained: TrainedModel, config_file: str, num_images: int, num_ranked: int) -> str:
    """
    Return the HTML report of a run that was evaluated on DATASETS.TEST[0].

    Args:
        trained: completed config and weights of the run.
        config_file: name of the config file, shown on the page.
        num_images: number of images to show, evenly spread over the data set.
        num_ranked: number of worst images to show.
    """
    cfg, start = trained
    metadata = class_metadata(cfg)
    folder = evaluation_folder(cfg.OUTPUT_DIR, metadata.name)
    evaluation = read_evaluation(folder)
    log = read_training_log(cfg.OUTPUT_DIR)
    model = build_trained_model(cfg, start)
    evaluated, found = evaluation.run.get("weights_sha256"), weights_sha256(model)
    if evaluated != found:  # metrics and pictures would come from different models
        raise UserError(
            f"The evaluation in {folder} used {evaluation.run.get('weights')} (SHA-256 "
            f"{evaluated}), but MODEL.WEIGHTS is {cfg.MODEL.WEIGHTS} ({found}). Evaluate it "
            f"first: ocr-panoptic evaluate --config-file CONFIG --weights {cfg.MODEL.WEIGHTS} "
            f"OUTPUT_DIR {cfg.OUTPUT_DIR}"
        )
    is_panoptic = "panoptic_seg" in evaluation.results
    task, metric = ("panoptic_seg", "PQ") if is_panoptic else ("sem_seg", "mIoU")
    segments = PanopticTruth(metadata) if is_panoptic else None
    inspector = Inspector(cfg, model)

    def figures(record: dict[str, Any], with_regions: bool) -> ImageFigures:
        truth: PanopticMap | np.ndarray
        if segments is not None:
            truth = panoptic_truth(segments[record["image_id"]], metadata)
        else:
            truth = semantic_truth(record, metadata)
        name = Path(record["file_name"]).name
        return image_figures(name, inspector(record), truth, metadata, with_regions)

    records = DatasetCatalog.get(metadata.name)
    places = np.linspace(0, len(records) - 1, min(num_images, len(records))).round().astype(int)
    shown = with_progress([records[place] for place in places], "pictures")
    images = [figures(record, with_regions=True) for record in shown]
    by_name = {record["file_name"]: record for record in records}
    scores = [r for r in read_table(image_scores_file(folder, task)) if r["file_name"] in by_name]
    worst = worst_images(scores, metric, num_ranked)
    ranking = [  # without regions, which would take up most of the page
        RankedImage(figures(by_name[file_name], with_regions=False), score, losses)
        for file_name, score, losses in with_progress(worst, "worst images")
    ]
    confusion = folder / "confusion_matrix.png"
    has_confusion = not is_panoptic and confusion.is_file()
    settings = {
        **{k.replace("_", " "): v for k, v in evaluation.run.items() if v not in (None, "")},
        "config": config_file,
        **_settings(cfg, log),
    }
    scheme = settings["context scheme"]
    iterations = int(max((r["iteration"] for r in log if "total_loss" in r), default=-1)) + 1
    return render_report(
        title=task_of(cfg).title + ("" if scheme == "none" else f" + {scheme}"),
        description=f"{cfg.MODEL.META_ARCHITECTURE} with {settings['semantic head']}, context "
        f"scheme {scheme}. Trained on {', '.join(cfg.DATASETS.TRAIN)}"
        + (f" for {iterations} iterations" if iterations else "")
        + f", evaluated on the {len(records)} images of {metadata.name}.",
        dataset=metadata.name,
        results=evaluation.results,
        training_log=log,
        images=images,
        metadata=metadata,
        settings=settings,
        confusion=png_source(confusion.read_bytes()) if has_confusion else "",
        ranking=ranking,
    )


def _settings(cfg: CfgNode, log: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    head = cfg.MODEL.SEM_SEG_HEAD.NAME
    times = [row["time"] for row in log if "time" in row]
    return {
        "semantic head": head,
        "context scheme": cfg.MODEL.CONTEXT.NAME if head in HEADS else "none",
        "weights": cfg.MODEL.WEIGHTS,
        "images per iteration": cfg.SOLVER.IMS_PER_BATCH,
        "base learning rate": cfg.SOLVER.BASE_LR,
        **({"time per iteration": f"{median(times):.3g} s (median)"} if times else {}),
    }
