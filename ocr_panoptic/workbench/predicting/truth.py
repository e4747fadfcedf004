"""Written results against the truth, with the evaluators of ``ocr-panoptic evaluate``."""

import logging
from collections import OrderedDict
from collections.abc import Container, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, Metadata, MetadataCatalog
from detectron2.evaluation import print_csv_format
from detectron2.utils import comm

from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, read_data_file
from ocr_panoptic.data.described import label_space
from ocr_panoptic.data.faults import first_few, raise_if_any
from ocr_panoptic.data.panoptic.annotations import panoptic_metadata, read_panoptic_json
from ocr_panoptic.data.panoptic.source import PanopticSource, kinds_of
from ocr_panoptic.data.parallel import imap_with_progress
from ocr_panoptic.data.register import register
from ocr_panoptic.engine.agreement import stop_together
from ocr_panoptic.engine.class_names import Classes
from ocr_panoptic.engine.inputs import Inputs
from ocr_panoptic.engine.outputs import Record, Writer
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.evaluation.instance_evaluator import PanopticInstanceEvaluator
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.formats.coco_panoptic import categories_of, read_panoptic_png
from ocr_panoptic.formats.image_sources import find_images
from ocr_panoptic.formats.labels import read_label_png
from ocr_panoptic.formats.run_folder import write_evaluation

from .folder import Place, read_records

logger = logging.getLogger(__name__)

FOLDER = "evaluation"
TRUTH = "prediction_truth"


def find_truth(path: Path, inputs: Inputs, metadata: Metadata) -> "Truth":
    """
    Args:
        path: a data file, of which the split with the folder of the images is taken; or for a
            panoptic model a panoptic JSON, whose PNGs lie in the folder of its name without suffix,
            and for a semantic one a folder of label PNGs with the names of the images.
        metadata: of the model's data set.

    Raises:
        FileNotFoundError, DataFaults: it is missing, or has faults that show before any image or
            PNG is read.
        ValueError: it has other classes than the model, is of another kind or of other images, or
            no image has a truth; the images are those of a video.
    """
    if inputs.folder is None:
        raise UserError("--eval compares images with their truth; --input is a video")
    is_panoptic = bool(metadata.get("thing_classes"))
    place = [path]
    if path.suffix in (".yaml", ".yml"):
        _, *place = vars(_described_split(path, inputs.folder, metadata, is_panoptic)).values()
    truth = (PanopticJsonTruth if is_panoptic else SemanticTruth)(inputs, metadata, *place)
    if not {item.file_name for item in inputs.items}.intersection(truth.names):
        raise UserError(
            f"--eval {path}: none of the {len(inputs.items)} images has a truth; are their names, "
            f"relative to {inputs.folder}, those of the truth?"
        )
    return truth


def _described_split(
    file: Path, images: Path, metadata: Metadata, is_panoptic: bool
) -> PanopticSplit | SemanticSplit:
    """Return the split of a data file whose images lie in a folder."""
    data, kind = read_data_file(file), "panoptic" if is_panoptic else "semantic"
    if data.kind != kind:
        raise UserError(f"--eval {file}: describes {data.kind} data, but the model is {kind}")
    if not is_panoptic:
        theirs = label_space(data).metadata()
        for key in ("stuff_classes", "label_map"):
            if theirs[key] != metadata.get(key):
                raise UserError(
                    f"--eval {file}: has other classes than {metadata.name}, whose classes the "
                    f"model has: {theirs[key]} and {metadata.get(key)}"
                )
    for split in data.splits.values():
        if split.images.resolve() == images.resolve():
            return split
    found = ", ".join(f"{name}: {split.images}" for name, split in data.splits.items())
    raise UserError(f"--eval {file}: no split has its images in --input {images} ({found})")


class SemanticTruth:
    """
    A folder of label PNGs.

    Attributes:
        names: of the images that have a truth, relative to the folder of them, in the order of the
            data set.
    """

    def __init__(self, inputs: Inputs, metadata: Metadata, path: Path):
        if not path.is_dir():
            raise MissingFileError(
                f"--eval {path}: no such folder; the truth of a semantic model is a folder of "
                "label PNGs with the names of the images"
            )
        self._path, self._metadata = path, metadata
        labels = {
            _stem(file.relative_to(path).as_posix()): file
            for file in find_images([str(path)])
            if file.suffix.lower() == ".png"
        }
        self._pairs: dict[str, tuple[Path, Path]] = {}  # name -> image, label PNG
        absent = dict(labels)
        for item in sorted(inputs.items, key=lambda item: _stem(item.file_name)):
            stem = _stem(item.file_name)
            if stem not in labels:
                continue
            if absent.pop(stem, None) is None:
                raise UserError(
                    f"--eval {path}: {labels[stem]} is the truth of several images, {item.source} "
                    "among them; rename them"
                )
            self._pairs[item.file_name] = item.source, labels[stem]
        self.names = [*self._pairs, *absent]

    def register(self, names: Container[str]) -> str:
        """
        Register the truth of some images as a data set, and return its name. Every process calls
        it.

        Raises:
            DataFaults: it has faults.
        """
        records = [
            {"file_name": str(image), "dataset_name": TRUTH, "sem_seg_file_name": str(label)}
            for name, (image, label) in self._pairs.items()
            if name in names
        ]
        known = {k: v for k, v in self._metadata.as_dict().items() if k != "name"}
        register(TRUTH, self._path, lambda: records, known)
        return TRUTH


class PanopticJsonTruth:
    """A panoptic JSON and a folder of PNGs, by default that of its name; with what
    :class:`SemanticTruth` has."""

    def __init__(
        self, inputs: Inputs, metadata: Metadata, path: Path, segments: Path | None = None
    ):
        if not path.is_file():
            raise MissingFileError(
                f"--eval {path}: no such file; the truth of a panoptic model is a panoptic JSON"
            )
        self._images, self._segments = inputs.folder, segments or path.with_suffix("")
        self._channels = metadata.get("channels", 3)
        self._truth = read_panoptic_json(path)
        theirs, ours = (
            [(c["id"], c["name"], "thing" if c["isthing"] else "stuff") for c in categories]
            for categories in (
                [category.as_json() for category in self._truth.categories],
                categories_of(metadata),
            )
        )
        if theirs != ours:
            raise UserError(
                f"--eval {path}: has other categories than {metadata.name}, whose classes the "
                f"model has: {theirs} and {ours}"
            )
        self.names = [image.file_name for image in self._truth.images]

    def register(self, names: Container[str]) -> str:
        path, categories = self._truth.path, self._truth.categories
        split = PanopticSplit(self._images, path, self._segments)
        source = PanopticSource(TRUTH, split, self._channels)
        rows = [
            vars(image)
            for image in sorted(self._truth.images, key=lambda image: image.id)
            if image.file_name in names and image.segments
        ]
        with stop_together():
            if comm.is_main_process():
                found = list(imap_with_progress(source.check, rows, "check the truth"))
                raise_if_any([fault for faults, _ in found for fault in faults])
        kinds = kinds_of(categories)
        records = [source.record(row, kinds) for row in rows]
        metadata = {**panoptic_metadata(categories), **source.file_metadata()}
        register(TRUTH, path, lambda: records, metadata)
        return TRUTH


Truth = SemanticTruth | PanopticJsonTruth


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def evaluate_results(
    cfg: CfgNode,
    truth: Truth,
    inputs: Inputs,
    places: Mapping[str, Place],
    writer: Writer,
    run: Mapping[str, Any],
) -> Mapping[str, Mapping[str, float]] | None:
    """
    Compare the results of the images that have a truth, as they were written. Every process calls
    it, and takes a share of them.

    Args:
        places: of the records of the images that have results.
        run: what is written of the predictions, beside the metrics.

    Returns:
        the metrics that ``ocr-panoptic evaluate`` gives, which are also written to
        ``evaluation/`` and logged, with the images of the truth that they are not of; None but in
        the main process.

    Raises:
        DataFaults: the truth has faults.
        ValueError: no image with a truth has a result.
    """
    by_name = {item.file_name: item for item in inputs.items if item.name in places}
    left_out = [name for name in truth.names if name not in by_name]
    if len(left_out) == len(truth.names):
        raise UserError("--eval: no image with a truth has a result, so nothing is compared")
    name = truth.register(by_name)
    by_source = {str(item.source): item for item in by_name.values()}
    records = DatasetCatalog.get(name)
    if comm.is_main_process():
        total = len(truth.names)
        logger.info("Evaluation of %d of the %d images of the truth", len(records), total)
        if left_out:
            logger.warning(
                "%d images of the truth have no result and are left out of the evaluation: %s",
                len(left_out),
                first_few(left_out),
            )
    output = writer.folder / FOLDER
    evaluators = _Evaluators(cfg, name, output, writer.classes)
    # In the order of the data set and by its shares: sums of floats depend on them.
    share = np.array_split(np.arange(len(records)), comm.get_world_size())[comm.get_rank()]
    mine = [records[i] for i in share]
    items = [by_source[record["file_name"]] for record in mine]
    for entry, (item, record) in zip(mine, read_records(items, places), strict=True):
        evaluators.add(entry, record, writer.paths(item))
    results = evaluators.evaluate()
    if not comm.is_main_process():
        return None
    print_csv_format(results)
    write_evaluation(results, output, {**run, "images": len(records), "left_out": left_out})
    return results


class _Evaluators:
    """The evaluators of the kind of data, fed with files."""

    def __init__(self, cfg: CfgNode, truth: str, output: Path, classes: Classes):
        self._raw_to_train = np.zeros(int(classes.labels.max()) + 1, dtype=np.uint8)
        self._raw_to_train[classes.labels] = np.arange(len(classes.labels))
        self._semantic = SemSegEvaluator(truth, output)
        self._panoptic = self._instances = None
        if classes.categories:
            self._panoptic = PanopticEvaluator(truth, output_dir=output)
            tasks = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
            self._instances = PanopticInstanceEvaluator(truth, tasks)
            self._instances.reset()
            self._class_of = MetadataCatalog.get(truth).thing_dataset_id_to_contiguous_id

    def add(self, truth: dict[str, Any], record: Record, paths: Mapping[str, Path]) -> None:
        labels = self._raw_to_train[read_label_png(paths["labels"])]
        self._semantic.process([truth], [{"labels": torch.as_tensor(labels)}])
        if self._panoptic is None:
            return
        ids = torch.as_tensor(read_panoptic_png(paths["panoptic"]))
        self._panoptic.process([truth], [{"panoptic_seg": (ids, record["segments"])}])
        image_id = truth["image_id"]
        results = [
            {**r, "image_id": image_id, "category_id": self._class_of[r["category_id"]]}
            for r in record["instances"]
        ]
        self._instances._predictions.append({"image_id": image_id, "instances": results})
        self._instances.add_truth(image_id)

    def evaluate(self) -> OrderedDict:
        evaluators = filter(None, (self._panoptic, self._semantic, self._instances))
        found = (evaluator.evaluate() or {} for evaluator in evaluators)
        return OrderedDict(item for results in found for item in results.items())
