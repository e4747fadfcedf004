"""How good the soft object regions are: do they gather, and relate to, pixels of their own class?

Shape letters: H, W size of the image; K classes; h, w size of the features.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from .confusion import confusion_matrix, semantic_metrics


class RegionQuality:
    """
    Over the images of a data set, for each class:

    - "IoU coarse", "IoU refined": of the prediction that makes the regions, and of the one that is
      made with their help, in percent.
    - "own weight": the share of the weight with which the region gathers pixels, sum_i a_ki t_ki,
      that is on pixels of its class, where a_k is the soft object region (sum 1) and t_ki the part
      of cell i that the class covers; the mean over the images with the class, in percent.
    - "chance": the same of a region that is uniform over the image: the part of it that the class
      covers.
    - "own relation": the relation w_ik of the class's pixels to its own region (of 1 to all
      regions), the mean over all of them, in percent.
    """

    COLUMNS = ("IoU coarse", "IoU refined", "own weight", "chance", "own relation")

    def __init__(self, class_names: Sequence[str], ignore_label: int):
        self.class_names = list(class_names)
        self.ignore_label = ignore_label
        k = len(self.class_names)
        self._confusions = {name: np.zeros((k, k), np.int64) for name in ("coarse", "refined")}
        self._images, self._own, self._chance, self._pixels, self._relation = np.zeros((5, k))

    def process(
        self,
        truth: np.ndarray,
        coarse: np.ndarray,
        refined: np.ndarray,
        regions: np.ndarray,
        relation: np.ndarray,
    ) -> None:
        """
        Add an image.

        Args:
            truth: unsigned integers [H,W], labels 0..K-1 or the ignored one.
            coarse, refined: integers [H,W], predicted labels 0..K-1.
            regions: [K,h,w], each of sum 1.
            relation: [K,h,w], of sum 1 over K.

        Raises:
            ValueError: the sizes or labels do not fit.
        """
        k = len(self.class_names)
        if regions.shape != relation.shape or len(regions) != k:
            raise ValueError(
                f"the regions are {list(regions.shape)} and the relation {list(relation.shape)}; "
                f"both have the shape [K,h,w], K = {k}"
            )
        for name, labels in (("coarse", coarse), ("refined", refined)):
            self._confusions[name] += confusion_matrix(truth, labels, k, self.ignore_label)
        size = regions.shape[:0:-1]
        parts = np.stack(
            [
                cv2.resize((truth == label).astype(np.float64), size, interpolation=cv2.INTER_AREA)
                for label in range(k)
            ]
        )
        covered = parts.sum((1, 2))
        self._images += covered > 0
        self._own += (regions * parts).sum((1, 2))
        self._chance += parts.mean((1, 2))
        self._pixels += covered
        self._relation += (relation * parts).sum((1, 2))

    def results(self) -> dict[str, dict[str, float]]:
        """
        Returns:
            for each class, and "mean" over the classes that the truth holds: value by column, NaN
            for a class that it does not hold
        """
        with np.errstate(invalid="ignore"):
            columns = {
                "own weight": 100 * self._own / self._images,
                "chance": 100 * self._chance / self._images,
                "own relation": 100 * self._relation / self._pixels,
            }
        for name, confusion in self._confusions.items():
            metrics = semantic_metrics(confusion, self.class_names)
            ious = [metrics[f"IoU-{name}"] for name in self.class_names]
            columns[f"IoU {name}"] = np.array(ious)
        rows = {
            name: {column: float(columns[column][i]) for column in self.COLUMNS}
            for i, name in enumerate(self.class_names)
        }
        held = self._images > 0
        mean = {c: float(columns[c][held].mean()) if held.any() else np.nan for c in self.COLUMNS}
        return {**rows, "mean": mean}
