"""Evaluates panoptic segmentation batch by batch, without keeping the predictions."""

import logging
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
from detectron2.data import MetadataCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm
from tabulate import tabulate
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import ids_by_class
from ocr_panoptic.metrics import named

from .bootstrap import bootstrap_interval, mean_pq
from .image_scores import ImageScore, all_counts, panoptic_losses, write_image_scores
from .panoptic_quality import PanopticQuality
from .panoptic_truth import PanopticTruth
from .predictions import with_dataset_ids
from .segment_matching import SegmentOverlaps

logger = logging.getLogger(__name__)


class PanopticEvaluator(DatasetEvaluator):
    """
    An evaluator of PQ, SQ, RQ, Boundary PQ and the number of objects, with an interval of PQ.

    Each metric is computed for each class, and averaged over all categories, over things and over
    stuff. :mod:`.bootstrap` defines the interval. PQ, SQ and RQ equal Detectron2's, except that the
    area of a true segment is its number of pixels in the PNG, not the area in the JSON. Predicted
    segments of classes that the data lack count as no prediction.

    Args:
        dataset_name: a registered panoptic data set.
        output_dir: folder for ``panoptic_seg_per_image.csv``; None writes nothing.
    """

    def __init__(self, dataset_name: str, output_dir: str | os.PathLike | None = None):
        self._metadata = MetadataCatalog.get(dataset_name)
        self._truth = PanopticTruth(self._metadata)
        self._output_dir = output_dir
        self.reset()

    def reset(self) -> None:
        self.quality = PanopticQuality(self._truth.categories)
        self.boundary_quality = PanopticQuality(self._truth.categories)
        self._images: list[ImageScore] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """
        Match the true and predicted segments of each image in a batch, and count the matches.

        Args:
            inputs: mappings with "file_name" and "image_id".
            outputs: mappings with "panoptic_seg": (segment ids [H, W], segments_info). Each segment
                in segments_info has "id", contiguous "category_id" and "isthing".
        """
        for input_, output in zip(inputs, outputs, strict=True):
            truth = self._truth[input_["image_id"]]
            ids, segments = self._prediction(*output["panoptic_seg"])
            try:
                overlaps = SegmentOverlaps(truth.ids, truth.segments, ids, segments)
            except ValueError as error:
                raise UserError(
                    f"{input_['file_name']} (image_id {input_['image_id']}, ground truth "
                    f"{truth.png}): {error}."
                ) from error
            matches, of_image = overlaps.matches(), PanopticQuality(self._truth.categories)
            for quality in (self.quality, of_image):
                quality.add(matches)
            self.boundary_quality.add(overlaps.boundary_matches())
            losses = panoptic_losses(of_image.statistics(), of_image.confused(matches))
            tp, fp, fn = of_image.counts[of_image.isthing].sum(axis=0).tolist()
            objects = {"true objects": tp + fn, "predicted objects": tp + fp}
            statistics = of_image.statistics()
            self._images.append(ImageScore(input_["file_name"], losses, statistics, objects))

    def _prediction(self, ids: Tensor, segments: list[dict]) -> tuple[np.ndarray, list[dict]]:
        segments, pixels = with_dataset_ids(segments, self._metadata), ids.cpu().numpy()
        listed = {category["id"] for category in self._truth.categories}
        absent = [s["id"] for s in segments if s["category_id"] not in listed]
        if absent:
            pixels = np.where(np.isin(pixels, absent), 0, pixels)
        return pixels, [s for s in segments if s["category_id"] in listed]

    def evaluate(self) -> OrderedDict | None:
        """
        Return {"panoptic_seg": scores under Detectron2's names}; None except in the main process.

        The scores, in percent, are "PQ", "SQ", "RQ" and "BoundaryPQ" of all categories; the suffix
        "_th" means things, and "_st" stuff. The ends of the 95% confidence intervals are "PQ_low",
        "PQ_high", "PQ_th_low" and "PQ_th_high". Each class has the four scores, its numbers of
        segments ("TP", "FP" and "FN"), and "isthing" (0 or 1). Each thing class has means over the
        images: "objects", the true number; "count_error", the absolute difference between the
        predicted and the true number; and "count_bias", the predicted minus the true number.
        Without a class, these are means over the thing classes that occur. A score is NaN if there
        are no segments to compute it from.
        """
        gathered = comm.gather((self.quality, self.boundary_quality, self._images))
        if not comm.is_main_process():
            return None
        total = PanopticQuality(self._truth.categories)
        boundary_total = PanopticQuality(self._truth.categories)
        images: list[ImageScore] = []
        for quality, boundary_quality, scores in gathered:
            total += quality
            boundary_total += boundary_quality
            images += scores
        averages = {name: 100 * value for name, value in total.averages().items()}
        boundary = boundary_total.averages()
        averages |= {f"BoundaryPQ{s}": 100 * boundary[f"PQ{s}"] for s in ("", "_th", "_st")}
        counts = all_counts(images).reshape(len(images), len(total.isthing), 4)
        # As in PQ, crowds are not objects: an image has TP + FN true and TP + FP predicted objects.
        tp, fp, fn = np.moveaxis(counts[:, total.isthing, 1:], -1, 0)
        parts = {"objects": tp + fn, "count_error": np.abs(fp - fn), "count_bias": fp - fn}
        number = np.where((tp + fp + fn).any(axis=0), float(len(images)), np.nan)
        errors = {name: part.sum(axis=0) / number for name, part in parts.items()}
        for name, values in errors.items():
            found = values[~np.isnan(values)].tolist()
            averages[name] = sum(found) / len(found) if found else float("nan")
        logger.info("Panoptic quality on %s:\n%s", self._metadata.name, _table(averages, total))
        for suffix, group in (("", ...), ("_th", total.isthing)):
            low, high = bootstrap_interval(counts[:, group], mean_pq)
            averages |= {f"PQ{suffix}_low": 100 * low, f"PQ{suffix}_high": 100 * high}
        if self._output_dir is not None:
            write_image_scores(images, "PQ", "panoptic_seg", Path(self._output_dir))
        scores = self._per_class(total, boundary_total, errors)
        return OrderedDict(panoptic_seg={**averages, **scores})

    def _per_class(
        self,
        quality: PanopticQuality,
        boundary_quality: PanopticQuality,
        errors: dict[str, np.ndarray],
    ) -> dict[str, float]:
        columns = {metric: 100 * values for metric, values in quality.per_class().items()}
        columns["BoundaryPQ"] = 100 * boundary_quality.per_class()["PQ"]
        columns.update(zip(("TP", "FP", "FN"), quality.counts.T, strict=True))
        columns["isthing"] = quality.isthing.astype(int)
        name_of: dict[int, str] = {}
        for kind in ("stuff", "thing"):
            classes = self._metadata.get(f"{kind}_classes")
            name_of |= zip(ids_by_class(self._metadata, kind), classes, strict=True)
        names = [name_of[category["id"]] for category in self._truth.categories]
        scores: dict[str, float] = {}
        for metric, column in columns.items():
            scores |= named(metric, names, column.tolist())
        things = [name for name, isthing in zip(names, quality.isthing) if isthing]
        for metric, column in errors.items():
            scores |= named(metric, things, column.tolist())
        return scores


def _table(averages: dict[str, float], quality: PanopticQuality) -> str:
    occurs = quality.counts.sum(axis=1) > 0
    things = quality.isthing
    groups = (("all", "", ...), ("things", "_th", things), ("stuff", "_st", ~things))
    metrics = ("PQ", "SQ", "RQ", "BoundaryPQ")
    rows = [
        [label, *(averages[metric + suffix] for metric in metrics), occurs[group].sum()]
        for label, suffix, group in groups
    ]
    table = tabulate(rows, headers=["", *metrics, "categories"], floatfmt=".3f")
    return (
        f"{table}\nObjects per image and thing class: {averages['objects']:.2f} on average; error "
        f"of the predicted count {averages['count_error']:.2f}, bias {averages['count_bias']:+.2f}"
    )
