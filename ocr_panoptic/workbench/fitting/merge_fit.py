"""
Finds the constants of the panoptic merge that give the highest PQ.

Every setting of the constants is tried on the same predictions. The reported PQ is cross-validated:
the images are split into folds of successive images (such as frames of a video), and each fold is
merged with rules fitted to the other folds. Categories without a true segment are left out of the
mean PQ and keep their constants.
"""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from detectron2.data import MetadataCatalog

from ocr_panoptic.data.loading import build_test_loader
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.bootstrap import bootstrap_interval, mean_pq
from ocr_panoptic.evaluation.panoptic_truth import PanopticTruth
from ocr_panoptic.modeling.panoptic_merge import MergeRules
from ocr_panoptic.predict.task import task_of
from ocr_panoptic.predict.trained_model import TrainedModel, build_trained_model
from ocr_panoptic.progress import with_progress

from .merge_replay import KeptImage, Rules, keep_image, replay

SWEEPS = 2
OVERLAPS = [round(0.1 * i, 1) for i in range(1, 11)]
SCORES = [round(0.05 * i, 2) for i in range(1, 20)]
AREAS = [0.0, *(4.0**i for i in range(2, 9))]


class KeptPredictions(NamedTuple):
    """
    A model's predictions for a data set, and the category of each of the model's classes.

    The model has T thing classes and L semantic labels; the data set has C categories.
    ``categories``, int64 [T + L], has the category index, 0..C-1, of each thing class, then of each
    semantic label; -1 for the label that stands for things.
    """

    images: list[KeptImage]  # in the order of the data set
    categories: np.ndarray
    things: int  # T
    num_categories: int  # C


def kept_predictions(trained: TrainedModel) -> KeptPredictions:
    """Run a trained model on DATASETS.TEST[0]; return the predictions."""
    cfg, start = trained
    if cfg.MODEL.META_ARCHITECTURE != "PanopticSegmentor":
        raise UserError(
            f"MODEL.META_ARCHITECTURE is {cfg.MODEL.META_ARCHITECTURE}; expected "
            "PanopticSegmentor, the only model whose merge rules can be fitted"
        )
    name = cfg.DATASETS.TEST[0]
    metadata = MetadataCatalog.get(name)
    if not metadata.get("panoptic_json"):
        raise UserError(
            f"{name} has no panoptic annotations, which the fit needs. Set DATASETS.TEST to a "
            "validation split with annotations"
        )
    truth = PanopticTruth(metadata)
    ids = [category["id"] for category in truth.categories]
    model, images = build_trained_model(cfg, start), []
    loader = build_test_loader(cfg, name, task_of(cfg).mapper(cfg, False))
    for inputs in with_progress(loader, "predict"):
        for input_, output in zip(inputs, model(inputs), strict=True):
            instances = output["instances"].to("cpu")
            instances = instances[torch.argsort(-instances.scores)]
            true = truth[input_["image_id"]]
            image = keep_image(
                instances.scores.numpy(),
                instances.pred_classes.numpy(),
                instances.pred_masks.to(torch.bool).numpy(),
                output["labels"].cpu().numpy(),
                true.ids,
                true.segments,
                ids,
            )
            images.append(image)
    positions = []
    things, labels = cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    for kind, count in (("thing", things), ("stuff", labels)):
        contiguous = metadata.get(f"{kind}_dataset_id_to_contiguous_id")
        position = {k: ids.index(i) if i in ids else -1 for i, k in contiguous.items()}
        positions += [position.get(k, -1) for k in range(count)]
    return KeptPredictions(images, np.array(positions), things, len(ids))


class MergeFit(NamedTuple):
    """Rules of the panoptic merge, fitted to all images, and the PQ that they reach, in percent."""

    name: str
    rules: MergeRules
    fitted: float  # PQ of these rules on all images
    held_out: float  # PQ on all images, each merged with rules fitted to the folds without it
    gain: float  # held_out minus the PQ of the current rules
    interval: tuple[float, float]  # 95 % bootstrap interval of the gain over the images

    @property
    def is_improvement(self) -> bool:
        """Return whether the gain's confidence interval is entirely above 0."""
        return self.interval[0] > 0


def fit_merge(
    kept: KeptPredictions, present: MergeRules, folds: int = 5
) -> tuple[float, list[MergeFit]]:
    """
    Fit merge rules twice: with the same constants for all classes, and with constants per class.

    Args:
        present: current rules.
        folds: number of folds of the cross-validation.

    Returns:
        PQ of the current rules, in percent, and the two fits
    """
    count = len(kept.images)
    if not 2 <= folds <= count:
        raise UserError(
            f"--folds is {folds}; expected at least 2, and at most the number of images ({count})"
        )
    search = _Search(kept, present)
    fold = np.arange(count) * folds // count
    now = search.per_image(search.present, range(count))
    before = _pq(now.sum(axis=0))
    # These candidates are the same in every fold, so they are replayed only once.
    uniform = search.uniform_rules()
    by_fold = [search.totals(uniform, np.flatnonzero(fold == f)) for f in range(folds)]
    every = np.sum(by_fold, axis=0)

    def best_of(totals: np.ndarray) -> Rules:
        i = int(np.argmax(_pq(totals)))
        return uniform.part(slice(i, i + 1))

    first = [best_of(every - part) for part in by_fold]
    outside = [np.flatnonzero(fold != f) for f in range(folds)]
    by_class = [search.by_class(rules, used) for rules, used in zip(first, outside, strict=True)]
    best = best_of(every)
    rows = []
    for name, rules, of_fold in (
        ("the same setting for all classes", best, first),
        ("a setting for each class", search.by_class(best, range(count)), by_class),
    ):
        held = np.zeros_like(now)
        for f, fold_rules in enumerate(of_fold):
            inside = np.flatnonzero(fold == f)
            held[inside] = search.per_image(fold_rules, inside)
        low, high = bootstrap_interval(
            np.concatenate([now, held], axis=-1),
            lambda counts: _pq(counts[..., 4:]) - _pq(counts[..., :4]),
        )
        overlap, scores, areas = (field[0].tolist() for field in rules)
        fitted, held_out = _pq(search.totals(rules, range(count)))[0], _pq(held.sum(axis=0))
        rows.append(
            MergeFit(
                name,
                MergeRules(overlap, tuple(scores), tuple(areas)),
                float(100 * fitted),
                float(100 * held_out),
                float(100 * (held_out - before)),
                (100 * low, 100 * high),
            )
        )
    return float(100 * before), rows


class _Search:
    def __init__(self, kept: KeptPredictions, present: MergeRules):
        self._kept = kept
        self._labels = len(kept.categories) - kept.things
        self.present = Rules(
            np.array([present.overlap]),
            np.array([present.scores], dtype=np.float64),
            np.array([present.stuff_areas], dtype=np.float64),
        )
        # The current values come first, so that argmax keeps them if others are only equal.
        self._overlaps = list(dict.fromkeys([present.overlap, *OVERLAPS]))
        self._scores = list(dict.fromkeys([*present.scores[:1], *SCORES]))
        self._areas = list(dict.fromkeys([*present.stuff_areas[-1:], *AREAS]))

    def uniform_rules(self) -> Rules:
        """Return the current rules, then all candidates with the same constants for all classes."""
        grid = list(itertools.product(self._overlaps, self._scores, self._areas))
        overlap, score, area = np.array(grid, dtype=np.float64).T
        all_classes = (
            overlap,
            np.repeat(score[:, None], self._kept.things, axis=1),
            np.repeat(area[:, None], self._labels, axis=1),
        )
        return Rules(*map(np.concatenate, zip(self.present, all_classes, strict=True)))

    def by_class(self, start: Rules, images: Iterable[int]) -> Rules:
        """
        Return rules with constants for each class, improved from ``start`` on the given images.

        In each of up to SWEEPS rounds, every value of each constant is tried separately. The best
        values are adopted if together they raise PQ.
        """
        images = list(images)
        rules, best = start, _pq(self.totals(start, images))[0]
        kept = [self._kept.images[i] for i in images]
        true = np.concatenate([image.categories[~image.is_crowd] for image in kept])
        fitted = np.isin(self._kept.categories, true)
        things = self._kept.things
        # (field, class, values): the overlap is for all classes; label 0 stands for things.
        places = [
            (0, None, self._overlaps),
            *((1, c, self._scores) for c in range(things) if fitted[c]),
            *((2, c, self._areas) for c in range(1, self._labels) if fitted[things + c]),
        ]
        for _ in range(SWEEPS):
            changes = [(field, c, value) for field, c, values in places for value in values]
            tried = Rules(*(np.repeat(field, len(changes), axis=0) for field in rules))
            for i, (field, c, value) in enumerate(changes):
                tried[field][i if c is None else (i, c)] = value
            values = _pq(self.totals(tried, images))
            joined = Rules(*(field.copy() for field in rules))
            start_at = 0
            for field, c, options in places:
                found = values[start_at : start_at + len(options)]
                start_at += len(options)
                if found.max() > best:
                    joined[field][0 if c is None else (0, c)] = options[int(found.argmax())]
            value = _pq(self.totals(joined, images))[0]
            if value <= best:
                break
            rules, best = joined, value
        return rules

    def totals(self, rules: Rules, images: Iterable[int]) -> np.ndarray:
        """Return the IoU sum, TP, FP and FN per setting and category, float64 [S, C, 4]."""
        totals = np.zeros((len(rules.overlap), self._kept.num_categories, 4))
        for i in images:
            replay(self._kept.images[i], rules, self._kept.categories, totals)
        return totals

    def per_image(self, rules: Rules, images: Iterable[int]) -> np.ndarray:
        """Return the IoU sum, TP, FP and FN per image and category, float64 [N, C, 4]."""
        return np.concatenate([self.totals(rules, [i]) for i in images])


def _pq(counts: np.ndarray) -> np.ndarray:
    """
    Return the mean PQ, 0..1, over the categories that occur in the ground truth.

    ``counts``, [..., C, 4], has each category's sum of matched IoUs, then TP, FP and FN.
    """
    # If an absent category counted, its wrong segments would enter the mean as a PQ of 0.
    occurs = counts[..., 1] + counts[..., 3] > 0
    return mean_pq(np.where(occurs[..., None], counts, 0))


def rules_fragment(rules: MergeRules) -> dict[str, object]:
    """Return the keys and values of MODEL.PANOPTIC_FPN.COMBINE that set the rules."""
    keys: dict[str, object] = {"OVERLAP_THRESH": rules.overlap}
    for common_key, class_key, values in (
        ("INSTANCES_CONFIDENCE_THRESH", "CLASS_CONFIDENCE", list(rules.scores)),
        ("STUFF_AREA_LIMIT", "CLASS_STUFF_AREA", [math.ceil(area) for area in rules.stuff_areas]),
    ):
        if is_uniform := len(set(values)) == 1:
            keys[common_key] = values[0]
        keys[class_key] = [] if is_uniform else values
    return keys
