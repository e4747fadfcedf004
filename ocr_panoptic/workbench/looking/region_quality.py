"""
Measures how well soft object regions cover, and are related to, the pixels of their classes.

Shape letters: H, W size of the image; K classes; h, w size of the features.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from detectron2.data import DatasetCatalog

from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.confusion import confusion_matrix, semantic_scores
from ocr_panoptic.formats.coco_panoptic import VOID_LABEL
from ocr_panoptic.layers import RegionContext
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from ocr_panoptic.predict.run_info import run_info
from ocr_panoptic.predict.single_image import class_metadata
from ocr_panoptic.predict.trained_model import TrainedModel, build_trained_model
from ocr_panoptic.progress import with_progress

from .inspection import HEADS, Inspector
from .scene import semantic_truth


class RegionQuality:
    """
    Measures the quality of each class's object region over a data set, in percent.

    Pixels without a class do not count.

    - "IoU coarse", "IoU refined": IoU of the coarse prediction, which defines the regions, and of
      the refined prediction.
    - "own weight": share of the region's weight that lies on pixels of its class (a cell's weight
      is spread evenly over the cell's pixels); 0 if all weight lies on pixels without a class.
    - "uniform": own weight of a region that is uniform over the image, i.e. the share of the image
      that the class covers.
    - "attainable": own weight of a region that lies only in the cell with the largest share of the
      class; below 100 for objects smaller than the cells.
    - "own relation": relation of the class's pixels to its region (sum over all regions: 100).

    All except IoUs are means over the images, weighted by the number of the class's pixels.
    """

    COLUMNS = ["IoU coarse", "IoU refined", "own weight", "uniform", "attainable", "own relation"]

    def __init__(self, class_names: Sequence[str], ignore_label: int):
        self.class_names, self.ignore_label = list(class_names), ignore_label
        k = len(self.class_names)
        self._confusions = {name: np.zeros((k, k), np.int64) for name in ("coarse", "refined")}
        self._sums = {column: np.zeros(k) for column in self.COLUMNS[2:]}

    def process(
        self,
        truth: np.ndarray,
        coarse: np.ndarray,
        refined: np.ndarray,
        regions: np.ndarray,
        relation: np.ndarray,
        cells: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """
        Add the results for an image to the measurement.

        Args:
            truth: true labels, unsigned integers [H,W] in 0..K-1 or the ignore label.
            coarse, refined: predicted labels, integers [H,W] in 0..K-1.
            regions: weights of the regions, [K,h,w], not negative.
            relation: relation of each pixel to the regions, [K,h,w], which sums to 1 over K.
            cells: edges of the features' cells in pixels of the image: ascending floats [h+1] and
                [w+1], from 0 to H and W.
        """
        k = len(self.class_names)
        for name, labels in (("coarse", coarse), ("refined", refined)):
            self._confusions[name] += confusion_matrix(truth, labels, k, self.ignore_label)
        rows, columns = (  # overlap [cells, pixels] of each cell with each pixel, along one axis
            np.diff(edges[:, None].clip(start, start + 1), axis=0)
            for edges, start in zip(cells, map(np.arange, truth.shape), strict=True)
        )
        area = np.outer(rows.sum(1), columns.sum(1))
        known = rows @ (truth != self.ignore_label) @ columns.T
        for label in np.setdiff1d(truth, self.ignore_label):
            covered = rows @ (truth == label) @ columns.T
            pixels = covered.sum()
            weight = np.divide(regions[label], area, out=np.zeros_like(area), where=area > 0)
            share = np.divide(covered, known, out=np.zeros_like(known), where=known > 0)
            gathered = (weight * known).sum()  # 0 if the region lies on ignored pixels only
            for column, value in (
                ("own weight", (weight * covered).sum() / gathered if gathered else 0.0),
                ("uniform", pixels / known.sum()),
                ("attainable", share.max()),
                ("own relation", (relation[label] * covered).sum() / pixels),
            ):
                self._sums[column][label] += pixels * value

    def results(self) -> dict[str, dict[str, float]]:
        """
        Return a dict of all measures in percent for each class, and for "(mean)" over the classes.

        Classes without true pixels have NaN, and do not count in the means.
        """
        columns = {}
        for kind, confusion in self._confusions.items():
            scores = semantic_scores(confusion, self.class_names)
            columns[f"IoU {kind}"] = [scores[f"IoU-{name}"] for name in self.class_names]
        pixels = self._confusions["coarse"].sum(axis=1)
        with np.errstate(invalid="ignore"):
            columns |= {column: 100 * sums / pixels for column, sums in self._sums.items()}
        table = np.array([columns[column] for column in self.COLUMNS]).T
        held = table[pixels > 0]
        mean = held.mean(axis=0) if len(held) else np.full(len(self.COLUMNS), np.nan)
        return {
            name: dict(zip(self.COLUMNS, map(float, row), strict=True))
            for name, row in zip([*self.class_names, "(mean)"], [*table, mean], strict=True)
        }


SCHEMES = [
    name
    for name, (scheme, _) in CONTEXT_SCHEMES.items()
    if issubclass(scheme, RegionContext) and not scheme.needs_truth
]


def measure_regions(trained: TrainedModel) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """
    Measure the quality of a trained model's object regions on DATASETS.TEST[0].

    The model sees each image as a whole, at a single scale. UserError is raised if the model does
    not predict an object region for each class.

    Returns:
        the results of :class:`RegionQuality`, and the facts that are needed to repeat the run
    """
    cfg, start = trained
    head, scheme = cfg.MODEL.SEM_SEG_HEAD.NAME, cfg.MODEL.CONTEXT.NAME
    if head not in HEADS or scheme not in SCHEMES or not cfg.MODEL.OCR.REGION_SUPERVISION:
        fault = "MODEL.OCR.REGION_SUPERVISION is False; expected True"
        if head not in HEADS:
            fault = f"MODEL.SEM_SEG_HEAD.NAME is {head}; expected {' or '.join(HEADS)}"
        elif scheme not in SCHEMES:
            fault = f"MODEL.CONTEXT.NAME is {scheme}; expected one of {', '.join(SCHEMES)}"
        raise UserError(f"This model has no object regions to measure: {fault}.")
    metadata = class_metadata(cfg)
    quality = RegionQuality(metadata.stuff_classes, VOID_LABEL)
    model = build_trained_model(cfg, start)
    inspector = Inspector(cfg, model)
    for record in with_progress(DatasetCatalog.get(metadata.name), "regions"):
        truth = semantic_truth(record, metadata)
        seen = inspector.semantics(record)
        assert seen.coarse is not None and seen.regions is not None  # SCHEMES and HEADS give both
        quality.process(truth, seen.coarse, seen.refined, *seen.regions)
    return quality.results(), run_info(cfg, model)
