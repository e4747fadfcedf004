"""The soft object regions of a trained model, measured over a data set."""

from typing import Any

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from tqdm import tqdm

from ocr_panoptic.engine.run_info import run_info
from ocr_panoptic.engine.single_image import class_metadata
from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.region_quality import RegionQuality
from ocr_panoptic.layers import RegionContext
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from ocr_panoptic.visualization.scene import semantic_truth

from .inspection import Inspector

SCHEMES = [
    name
    for name, (scheme, _) in CONTEXT_SCHEMES.items()
    if issubclass(scheme, RegionContext) and not scheme.needs_truth
]
HEADS = ("OCRSemSegFPNHead", "ContextSemSegHead")


def measure_regions(cfg: CfgNode) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """
    Whole images at a single scale, whatever TEST says.

    Args:
        cfg: completed; MODEL.WEIGHTS are the trained ones.

    Returns:
        (see :meth:`.RegionQuality.results`, on DATASETS.TEST[0]; see
        :func:`ocr_panoptic.engine.run_info.run_info`)

    Raises:
        FileNotFoundError: weights or labels are missing.
        ValueError: the model has no regions of the classes, or no relation to them, there are no
            labels, or the weights do not fit.
    """
    head, scheme = cfg.MODEL.SEM_SEG_HEAD.NAME, cfg.MODEL.CONTEXT.NAME
    if head not in HEADS or scheme not in SCHEMES or not cfg.MODEL.OCR.REGION_SUPERVISION:
        raise UserError(
            f"MODEL.SEM_SEG_HEAD.NAME {head} with MODEL.CONTEXT.NAME {scheme} and "
            f"MODEL.OCR.REGION_SUPERVISION {cfg.MODEL.OCR.REGION_SUPERVISION} has no predicted "
            f"regions of the classes that pixels are related to; {', '.join(SCHEMES)} have, with "
            f"supervision, in {' and '.join(HEADS)}"
        )
    metadata = class_metadata(cfg)
    quality = RegionQuality(metadata.stuff_classes, metadata.ignore_label)
    model = build_trained_model(cfg)
    inspector = Inspector(cfg, model)
    for record in tqdm(DatasetCatalog.get(metadata.name), desc="Regions", unit="image"):
        truth = semantic_truth(record, metadata)
        seen = inspector.semantics(record)
        quality.process(truth, seen.coarse, seen.refined, seen.regions, seen.relation, seen.cells)
    return quality.results(), run_info(cfg, model)
