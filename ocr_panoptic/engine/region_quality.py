"""The soft object regions of a trained model, measured over a data set."""

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from tqdm import tqdm

from ocr_panoptic.evaluation import RegionQuality
from ocr_panoptic.visualization import semantic_truth

from .inspection import class_metadata, inspect_record
from .trained_model import build_trained_model


def measure_regions(cfg: CfgNode) -> dict[str, dict[str, float]]:
    """
    Args:
        cfg: completed; MODEL.WEIGHTS are the trained ones.

    Returns:
        see :meth:`ocr_panoptic.evaluation.RegionQuality.results`, on DATASETS.TEST[0]

    Raises:
        FileNotFoundError: weights or labels are missing.
        ValueError: the context scheme has no regions of the classes or no relation to them, there
            are no labels, or the weights do not fit.
    """
    metadata = class_metadata(cfg)
    quality = RegionQuality(metadata.stuff_classes, metadata.ignore_label)
    model = build_trained_model(cfg)
    for record in tqdm(DatasetCatalog.get(metadata.name), desc="Regions", unit="image"):
        seen = inspect_record(cfg, model, record)
        if seen.regions is None or seen.relation is None:
            raise ValueError(
                f"MODEL.SEM_SEG_HEAD.NAME {cfg.MODEL.SEM_SEG_HEAD.NAME} with MODEL.CONTEXT.NAME "
                f"{cfg.MODEL.CONTEXT.NAME} relates no pixels to predicted object regions; measure "
                "OCR, DA-OCR, ACF-OCR or ASP-OCR"
            )
        truth = semantic_truth(record, metadata)
        quality.process(truth, seen.coarse, seen.refined, seen.regions, seen.relation)
    return quality.results()
