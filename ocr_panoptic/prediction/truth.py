"""Written results against the truth, with the evaluators of ``train_net.py --eval-only``."""

import logging
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog
from detectron2.evaluation import print_csv_format
from detectron2.utils import comm

from ocr_panoptic.coco_panoptic import read_panoptic_png
from ocr_panoptic.data import RawSplit, prepare_panoptic, register_prepared
from ocr_panoptic.data.register import register
from ocr_panoptic.data.semantic.records import LabelledFolder, load_semantic
from ocr_panoptic.engine.agreement import stop_together
from ocr_panoptic.evaluation.instance_evaluator import InstanceEvaluator
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.label_png import read_label_png
from ocr_panoptic.run_folder import write_evaluation

from .classes import Classes
from .folder import Place, read_records
from .inputs import Inputs
from .outputs import Record, Writer

logger = logging.getLogger(__name__)

FOLDER = "evaluation"
TRUTH = "prediction_truth"
SPLIT = "val"


def register_truth(path: Path, inputs: Inputs, folder: Path, metadata: Metadata) -> str:
    """
    The truth as a registered data set. Every process calls it.

    Args:
        path: for a panoptic model a panoptic JSON, whose PNGs lie in the folder of its name without
            suffix; for a semantic one a folder of label PNGs.
        folder: of the results; the panoptic truth is prepared in a folder in it.
        metadata: of the model's data set.

    Returns:
        the data set's name.

    Raises:
        FileNotFoundError, DataFaults: it is missing, or has faults.
        ValueError: it has other classes than the model, or the images are those of a video.
    """
    if inputs.folder is None:
        raise ValueError("--eval compares images with their truth; --input is a video")
    if metadata.get("thing_classes"):
        name = _register_panoptic(path, inputs.folder, folder / FOLDER / "truth", metadata)
    else:
        name = _register_semantic(path, inputs.folder, metadata)
    _with_truth(name, inputs, {str(item.source) for item in inputs.items})
    return name


def _with_truth(name: str, inputs: Inputs, sources: Container[str]) -> list[dict]:
    """The records of the truth, in its order, whose images are among those."""
    records = [r for r in DatasetCatalog.get(name) if r["file_name"] in sources]
    if not records:
        raise ValueError(
            f"--eval: none of the {len(inputs.items)} images has a truth and a result; are their "
            f"names, relative to {inputs.folder}, those of the truth?"
        )
    return records


def _register_semantic(path: Path, images: Path, metadata: Metadata) -> str:
    if not path.is_dir():
        raise FileNotFoundError(
            f"--eval {path}: no such folder; the truth of a semantic model is a folder of label "
            "PNGs with the names of the images"
        )
    known = {key: value for key, value in metadata.as_dict().items() if key != "name"}
    pairs = LabelledFolder(images, path, listed_by_labels=True)
    records = load_semantic(TRUTH, [pairs])
    register(TRUTH, path, lambda: records, known)
    return TRUTH


def _register_panoptic(path: Path, images: Path, output: Path, metadata: Metadata) -> str:
    if not path.is_file():
        raise FileNotFoundError(
            f"--eval {path}: no such file; the truth of a panoptic model is a panoptic JSON"
        )
    with stop_together():
        if comm.is_main_process():
            prepare_panoptic(TRUTH, {SPLIT: RawSplit(images, path, path.with_suffix(""))}, output)
    name = f"{TRUTH}_{SPLIT}"
    register_prepared(output.parent, [name])
    truth = MetadataCatalog.get(name)
    for key in ("thing_dataset_id_to_contiguous_id", "stuff_dataset_id_to_contiguous_id"):
        names = f"{key.partition('_')[0]}_classes"
        for what in (names, key):
            if truth.get(what) != metadata.get(what):
                raise ValueError(
                    f"--eval {path}: has other categories than {metadata.name}, whose classes the "
                    f"model has: {what} {truth.get(what)} and {metadata.get(what)}"
                )
    return name


def evaluate(
    cfg: CfgNode,
    truth: str,
    inputs: Inputs,
    places: Mapping[str, Place],
    writer: Writer,
    classes: Classes,
    run: Mapping[str, Any],
) -> Mapping[str, Mapping[str, float]] | None:
    """
    Compare the results of the images that have a truth, as they were written. Every process calls
    it, and takes a share of them.

    Args:
        truth: of :func:`register_truth`.
        places: of the records of the images that have results.
        run: what is written of the predictions, beside the metrics.

    Returns:
        the metrics that ``train_net.py --eval-only`` gives, which are also written to
        ``evaluation/`` and logged; None but in the main process.

    Raises:
        ValueError: no image has a truth.
    """
    by_source = {str(item.source): item for item in inputs.items if item.name in places}
    # In the order of the data set and by its shares: sums of floats depend on them.
    records = _with_truth(truth, inputs, by_source)
    total = len(DatasetCatalog.get(truth))
    if comm.is_main_process():
        logger.info("Evaluation of %d of the %d images of the truth", len(records), total)
    output = writer.folder / FOLDER
    evaluators = _Evaluators(cfg, truth, output, classes)
    share = np.array_split(np.arange(len(records)), comm.get_world_size())[comm.get_rank()]
    mine = [records[i] for i in share]
    items = [by_source[record["file_name"]] for record in mine]
    for entry, (item, record) in zip(mine, read_records(items, places), strict=True):
        evaluators.add(entry, record, writer.paths(item))
    # Of a part of the truth the rest is not missed.
    part = None if len(records) == total else [record["image_id"] for record in records]
    results = evaluators.evaluate(part)
    if not comm.is_main_process():
        return None
    print_csv_format(results)
    write_evaluation(results, output, {**run, "images": len(records)})
    return results


class _Evaluators:
    """Those of the kind of data, fed with files."""

    def __init__(self, cfg: CfgNode, truth: str, output: Path, classes: Classes):
        self._raw_to_train = np.zeros(int(classes.labels.max()) + 1, dtype=np.uint8)
        self._raw_to_train[classes.labels] = np.arange(len(classes.labels))
        self._semantic = SemSegEvaluator(truth, output)
        self._panoptic = self._instances = None
        if classes.categories:
            self._panoptic = PanopticEvaluator(truth, output_dir=output)
            tasks = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
            self._instances = InstanceEvaluator(truth, tasks)
            self._instances.reset()
            self._class_of = MetadataCatalog.get(truth).thing_dataset_id_to_contiguous_id

    def add(self, truth: dict[str, Any], record: Record, paths: Mapping[str, Path]) -> None:
        labels = self._raw_to_train[read_label_png(paths["labels"])]
        self._semantic.process([truth], [{"labels": torch.as_tensor(labels)}])
        if self._panoptic is None:
            return
        ids = torch.as_tensor(read_panoptic_png(paths["panoptic"]))
        self._panoptic.process([truth], [{"panoptic_seg": (ids, record["segments"])}])
        self._instances.add_results(
            truth["image_id"],
            [{**r, "category_id": self._class_of[r["category_id"]]} for r in record["instances"]],
        )

    def evaluate(self, image_ids: Sequence[int] | None) -> OrderedDict:
        """Metrics of the images that were added; ``image_ids`` are theirs, None for all."""
        results = OrderedDict()
        if self._panoptic is not None:
            results.update(self._panoptic.evaluate() or {})
        results.update(self._semantic.evaluate() or {})
        if self._instances is not None:
            results.update(self._instances.evaluate(image_ids) or {})
        return results
