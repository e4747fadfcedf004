"""Builds the evaluators that the metadata of a data set asks for."""

import os

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, Metadata
from detectron2.evaluation import COCOEvaluator, DatasetEvaluator, DatasetEvaluators

from ocr_panoptic.data.catalog import registered_metadata
from ocr_panoptic.data.metadata import INSTANCES, PANOPTIC, SEMANTIC
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.instance_evaluator import PanopticInstanceEvaluator
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.predictions import PanopticDump, SemSegDump
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.formats.labels import has_labels


def build_evaluator(
    cfg: CfgNode, dataset_name: str, output_dir: str | os.PathLike
) -> DatasetEvaluator:
    """
    Build the evaluators that ``evaluator_type`` in the data set's metadata selects.

    "coco_panoptic_seg": panoptic quality, semantic segmentation and AP of boxes and masks;
    "sem_seg": semantic segmentation; "coco": AP of boxes and masks.

    Args:
        cfg: config; MODEL.MASK_ON adds the AP of masks, and TEST.SAVE_PREDICTIONS adds evaluators
            that write the predictions.
        dataset_name: a registered data set.
        output_dir: folder for the predictions and the evaluators' other files.
    """
    metadata = registered_metadata(dataset_name)
    kind, saves = metadata.get("evaluator_type"), cfg.TEST.SAVE_PREDICTIONS
    evaluators: list[DatasetEvaluator] = []
    if kind == PANOPTIC:
        if saves:
            evaluators.append(PanopticDump(dataset_name, output_dir))
        has_pngs, has_objects = _truth_of_panoptic(metadata)
        if has_pngs:
            evaluators.append(PanopticEvaluator(dataset_name, output_dir))
        if has_pngs or has_objects:
            evaluators.append(SemSegEvaluator(dataset_name, output_dir))
            if metadata.thing_classes:
                evaluators.append(_instance_evaluator(cfg, metadata, output_dir, has_pngs))
    elif kind == SEMANTIC:
        if saves:
            evaluators.append(SemSegDump(dataset_name, output_dir))
        if any(map(has_labels, DatasetCatalog.get(dataset_name))):
            evaluators.append(SemSegEvaluator(dataset_name, output_dir))
    elif kind == INSTANCES:
        evaluators.append(_instance_evaluator(cfg, metadata, output_dir))
    else:
        raise UserError(
            f"Data set {dataset_name!r} has evaluator_type {kind!r}; expected {PANOPTIC!r}, "
            f"{SEMANTIC!r} or {INSTANCES!r}. Set it in the data set's metadata."
        )
    if not evaluators:
        raise UserError(
            f"Data set {dataset_name!r} has no labels, so there is nothing to evaluate. To save "
            "the predictions, set TEST.SAVE_PREDICTIONS True."
        )
    return DatasetEvaluators(evaluators)


def _truth_of_panoptic(metadata: Metadata) -> tuple[bool, bool]:
    """Return whether a panoptic data set has panoptic PNGs, and whether it has objects."""
    if metadata.get("panoptic_json"):
        return True, True
    first: dict = next(iter(DatasetCatalog.get(metadata.name)), {})
    return "pan_seg_file_name" in first, "annotations" in first and has_labels(first)


def _instance_evaluator(
    cfg: CfgNode, metadata: Metadata, output_dir: str | os.PathLike, has_pngs: bool = False
) -> COCOEvaluator:
    # Detectron2 would infer the tasks from the predictions, and omit masks if nothing is predicted.
    tasks = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
    has_json = metadata.get("json_file")
    # Detectron2 needs a folder to write the objects of records as a JSON.
    needs_folder = cfg.TEST.SAVE_PREDICTIONS or not (has_json or has_pngs)
    folder = os.fspath(output_dir) if needs_folder else None
    if has_pngs and not has_json:
        return PanopticInstanceEvaluator(metadata.name, tasks, folder)
    # The fast, compiled implementation gives results that differ slightly from pycocotools'.
    return COCOEvaluator(
        metadata.name, tasks, output_dir=folder, use_fast_impl=False, allow_cached_coco=False
    )
