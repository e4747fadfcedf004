"""Add Panoptic-FPN to ``TASKS``, the table of architectures."""

from detectron2.config import CfgNode
from detectron2.data import transforms as T

from ocr_panoptic.data.catalog import class_counts, has_panoptic_truth, registered_metadata
from ocr_panoptic.data.metadata import PANOPTIC, data_file_advice
from ocr_panoptic.data.panoptic.mapper import PanopticDatasetMapper
from ocr_panoptic.errors import UserError

from .evaluators import build_evaluator
from .task import TASKS, Task, complete_count


def _complete_panoptic_classes(cfg: CfgNode, dataset: str) -> None:
    metadata = registered_metadata(dataset)
    is_panoptic = metadata.get("evaluator_type") == PANOPTIC
    # A test split may lack annotations; then it can be predicted, but not evaluated.
    if not is_panoptic or (dataset in cfg.DATASETS.TRAIN and not has_panoptic_truth(dataset)):
        raise UserError(
            f"{dataset} has no annotations that Panoptic-FPN can use. Name panoptic PNGs and their "
            'JSON under "panoptic" in a data file (datasets/README.md), or register a data set in '
            "Python that has objects (annotations) and semantic PNGs. For COCO, use "
            f"coco_2017_{{train,val}}_panoptic_separated.{data_file_advice(dataset, metadata)}"
        )
    things, semantic = class_counts(dataset)
    complete_count(
        cfg, "ROI_HEADS", things, f"the number of thing classes in {dataset} is {things}"
    )
    text = f"{dataset} needs {semantic} (stuff classes + 1)"
    complete_count(cfg, "SEM_SEG_HEAD", semantic, text)


TASKS["PanopticSegmentor"] = TASKS["PanopticFPN"] = Task(
    title="Panoptic-FPN",
    mapper=PanopticDatasetMapper,
    complete_classes=_complete_panoptic_classes,
    classes=lambda cfg: (
        f"{cfg.MODEL.ROI_HEADS.NUM_CLASSES} thing and "
        f"{cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES - 1} stuff classes"
    ),
    test_augmentation=lambda cfg: T.ResizeShortestEdge(
        cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST
    ),
    evaluator=build_evaluator,
)
