"""Streaming evaluation of the offsets that SegFix predicts."""

import logging
from collections import OrderedDict

import numpy as np
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.offsets import IGNORED, split_offset_labels

logger = logging.getLogger(__name__)


class OffsetEvaluator(DatasetEvaluator):
    """
    An evaluator of offsets: F1, precision and recall of pixels near a boundary, and direction_ACC.

    "direction_ACC" is the share of correct directions among pixels that are near a boundary in the
    ground truth. Pixels without ground truth are ignored.

    Attributes:
        counts: numbers of pixels in this process, int64 [5]: true positives, false positives and
            false negatives of "near a boundary"; correct directions; pixels with a true direction.
    """

    def __init__(self, dataset_name: str):
        self._dataset_name = dataset_name
        self.reset()

    def reset(self) -> None:
        self.counts = np.zeros(5, dtype=np.int64)

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """
        Add the pixels of a batch to the counts.

        Each input has its true offset labels [H, W] as "sem_seg".
        """
        for input_, output in zip(inputs, outputs, strict=True):
            if "sem_seg" not in input_:
                raise UserError(
                    f"{input_['file_name']}: the image has no labels, so the offsets cannot be "
                    "evaluated. Use a split with labels."
                )
            near, direction = split_offset_labels(input_["sem_seg"].cpu().numpy())
            found = output["near_boundary"].cpu().numpy()
            pointed = (near == 1) & (direction != IGNORED)
            right = direction[pointed] == output["direction"].cpu().numpy()[pointed]
            masks = (found & (near == 1), found & (near == 0), ~found & (near == 1), right, pointed)
            self.counts += [np.count_nonzero(mask) for mask in masks]

    def evaluate(self) -> OrderedDict | None:
        """Return {"offsets": metrics in percent (NaN for 0 / 0)} in the main process, else None."""
        gathered = comm.gather(self.counts)
        if not comm.is_main_process():
            return None
        both, predicted, missed, right, pointed = np.sum(gathered, axis=0).tolist()
        metrics = {
            "F1": _percent(2 * both, 2 * both + predicted + missed),
            "precision": _percent(both, both + predicted),
            "recall": _percent(both, both + missed),
            "direction_ACC": _percent(right, pointed),
        }
        logger.info(
            "Offsets on %s: %s",
            self._dataset_name,
            ", ".join(f"{name} {value:.3f}" for name, value in metrics.items()),
        )
        return OrderedDict(offsets=metrics)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else float("nan")
