"""The evaluator that the metadata of a data set asks for."""

import logging
import os

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.evaluation import COCOEvaluator, DatasetEvaluator, DatasetEvaluators

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import has_labels

from .instance_evaluator import PanopticInstanceEvaluator
from .panoptic_dump import PanopticPredictions
from .panoptic_evaluator import PanopticEvaluator
from .sem_seg_evaluator import SemSegEvaluator
from .sem_seg_predictions import SemSegDump

logger = logging.getLogger(__name__)


def build_evaluator(
    cfg: CfgNode, dataset_name: str, output_dir: str | os.PathLike
) -> DatasetEvaluator:
    """Evaluator for ``evaluator_type`` of the data set's metadata.

    "coco_panoptic_seg": panoptic quality, semantic segmentation and AP of boxes and masks;
    "sem_seg": semantic segmentation; "coco": AP.

    Args:
        cfg: read are MODEL.MASK_ON (is there a mask AP?) and TEST.SAVE_PREDICTIONS (are predictions
            written, panoptic and instances or semantic?).
        dataset_name: a registered data set.
        output_dir: folder of the predictions and of what the evaluators write beside metrics.

    Raises:
        ValueError: another ``evaluator_type``, or a data set without labels whose predictions are
            not to be saved.
    """
    evaluator_type = MetadataCatalog.get(dataset_name).get("evaluator_type")
    dump_dir = os.fspath(output_dir) if cfg.TEST.SAVE_PREDICTIONS else None
    if evaluator_type == "coco_panoptic_seg":
        if not MetadataCatalog.get(dataset_name).get("panoptic_json"):
            if dump_dir is None:
                raise _nothing_to_evaluate(dataset_name)
            logger.info("%s has no truth: predictions are written and nothing else.", dataset_name)
            return PanopticPredictions(dataset_name, dump_dir)
        evaluators = [
            PanopticEvaluator(dataset_name, dump_dir, output_dir),
            SemSegEvaluator(dataset_name, output_dir),
        ]
        if MetadataCatalog.get(dataset_name).thing_classes:
            evaluators.append(_instance_evaluator(cfg, dataset_name, dump_dir))
        else:
            logger.info("%s has no thing classes, so there is no AP.", dataset_name)
        return DatasetEvaluators(evaluators)
    if evaluator_type == "sem_seg":
        return _semantic_evaluator(dataset_name, output_dir, dump_dir)
    if evaluator_type == "coco":
        return _instance_evaluator(cfg, dataset_name, dump_dir)
    raise UserError(
        f"Data set {dataset_name!r} has evaluator_type {evaluator_type!r}; expected "
        "'coco_panoptic_seg', 'sem_seg' or 'coco'. Set it in the data set's metadata."
    )


def _semantic_evaluator(
    dataset_name: str, output_dir: str | os.PathLike, dump_dir: str | None
) -> DatasetEvaluator:
    evaluators: list[DatasetEvaluator] = []
    if dump_dir is not None:
        evaluators.append(SemSegDump(dataset_name, dump_dir))
    if any(map(has_labels, DatasetCatalog.get(dataset_name))):
        evaluators.append(SemSegEvaluator(dataset_name, output_dir))
    elif dump_dir is None:
        raise _nothing_to_evaluate(dataset_name)
    else:
        logger.info("%s has no labels: predictions are written and nothing else.", dataset_name)
    return DatasetEvaluators(evaluators)


def _nothing_to_evaluate(dataset_name: str) -> ValueError:
    return UserError(
        f"Data set {dataset_name!r} has no labels, so there is nothing to evaluate; set "
        "TEST.SAVE_PREDICTIONS True to write the predictions."
    )


def _instance_evaluator(cfg: CfgNode, dataset_name: str, dump_dir: str | None) -> COCOEvaluator:
    # Detectron2 would infer the tasks from the predictions, and leave out the masks where nothing
    # is predicted.
    tasks = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
    if not MetadataCatalog.get(dataset_name).get("json_file"):
        return PanopticInstanceEvaluator(dataset_name, tasks, dump_dir)
    # The fast implementation is compiled, and close to pycocotools, not equal.
    return COCOEvaluator(dataset_name, tasks, output_dir=dump_dir, use_fast_impl=False)
