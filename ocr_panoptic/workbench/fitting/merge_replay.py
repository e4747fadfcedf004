"""
Computes the PQ of many panoptic merges of the same predictions, without running the network again.

An *atom* is the set of all pixels that are covered by the same instances and have the same semantic
label and the same true segment. A merge gives a whole atom to a segment or leaves it free,
so many merges can be computed on a few thousand atoms instead of all pixels.

Shape letters: n instances; A atoms; S settings; T thing classes; L semantic labels; C categories; G
true segments; P = n + L possible predicted segments.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ocr_panoptic.evaluation.runs import check_sizes, runs_of
from ocr_panoptic.evaluation.segment_matching import crowd_rows, ious, match, segment_positions

_ELEMENTS = 2**21  # limit on the size of the largest array, which bounds the memory
FREE = -1


class Rules(NamedTuple):
    """
    S settings of the panoptic merge's constants, for T thing classes and L semantic labels.

    Attributes:
        overlap: largest share of an instance's pixels that instances with higher scores are allowed
            to cover, float64 [S].
        score: lowest score of an instance that is used, float64 [S, T].
        stuff_area: smallest area of a stuff segment outside all instances, float64 [S, L].
    """

    overlap: np.ndarray
    score: np.ndarray
    stuff_area: np.ndarray

    def part(self, chosen: slice | np.ndarray) -> "Rules":
        return Rules(*(field[chosen] for field in self))


class KeptImage(NamedTuple):
    """
    The data of an image from which panoptic merges and their PQs are computed.

    Attributes:
        scores: scores of the instances, float64 [n], in descending order.
        classes: thing classes of the instances, int64 [n].
        covered: indices of the atoms that each instance covers, concatenated over the instances,
            int32.
        ends: position in ``covered`` just past each instance's last atom, int64 [n].
        labels: semantic labels of the atoms, int64 [A]; 0 for things.
        truth: true segments of the atoms, int64 [A]: 0 for an unknown id, 1 for void, 2 + g for
            true segment g.
        pixels: number of pixels of each atom, int64 [A].
        categories: category index, 0..C-1, of each true segment, int64 [G].
        crowds: index of each category's crowd among the true segments, int64 [C]; G for no crowd.
        is_crowd: whether each true segment is a crowd, bool [G].
    """

    scores: np.ndarray
    classes: np.ndarray
    covered: np.ndarray
    ends: np.ndarray
    labels: np.ndarray
    truth: np.ndarray
    pixels: np.ndarray
    categories: np.ndarray
    crowds: np.ndarray
    is_crowd: np.ndarray


def keep_image(
    scores: np.ndarray,
    classes: np.ndarray,
    masks: np.ndarray,
    labels: np.ndarray,
    true_ids: np.ndarray,
    true_segments: Sequence[Mapping],
    categories: Sequence[int],
) -> KeptImage:
    """
    Divide an image into atoms; return the data from which panoptic merges are computed.

    Args:
        scores: scores [n] in descending order.
        classes: contiguous thing classes [n].
        masks: masks of the instances, bool [n, H, W].
        labels: semantic labels [H, W], 0 for things.
        true_ids: true segment id of each pixel, integers [H, W]; 0 is void.
        true_segments: mappings with "id", "category_id" and optionally "iscrowd".
        categories: ids of the C categories.
    """
    check_sizes(true_ids, labels)
    rows = sorted(true_segments, key=lambda segment: segment["id"])
    ids = np.array([segment["id"] for segment in rows], dtype=np.int64)
    codes = np.random.default_rng(0).integers(2**64, size=len(masks), dtype=np.uint64)
    cover = np.zeros(labels.shape, dtype=np.uint64)
    for mask, code in zip(masks, codes, strict=True):
        # A sum of random numbers identifies a set of instances: two sets collide with probability
        # 2**-64.
        cover[mask] += code
    (cover, label, truth), lengths = runs_of(cover, labels, true_ids)
    places = np.cumsum(lengths) - lengths
    order = np.lexsort((truth, label, cover))
    changes = np.ones(len(order), dtype=bool)
    changes[1:] = np.any(
        [values[order][1:] != values[order][:-1] for values in (cover, label, truth)], axis=0
    )
    first = np.flatnonzero(changes)
    of_atom = order[first]
    instance, covered = np.nonzero(masks.reshape(len(masks), labels.size)[:, places[of_atom]])
    row_of = {category: row for row, category in enumerate(categories)}
    is_crowd = np.array([segment.get("iscrowd", 0) == 1 for segment in rows], dtype=bool)
    crowds = np.full(len(categories), len(rows))
    for category, row in crowd_rows(true_segments, ids).items():
        crowds[row_of[category]] = row
    return KeptImage(
        scores=np.asarray(scores, dtype=np.float64),
        classes=np.asarray(classes, dtype=np.int64),
        covered=covered.astype(np.int32),
        ends=np.cumsum(np.bincount(instance, minlength=len(masks))),
        labels=label[of_atom].astype(np.int64),
        truth=segment_positions(truth[of_atom], ids),
        pixels=np.add.reduceat(lengths[order], first),
        categories=np.array([row_of[segment["category_id"]] for segment in rows], dtype=np.int64),
        crowds=crowds,
        is_crowd=is_crowd,
    )


def replay(
    image: KeptImage, rules: Rules, segment_categories: np.ndarray, totals: np.ndarray
) -> None:
    """
    Merge an image's predictions under each of S settings, and add the PQ counts to ``totals``.

    The resulting PQ is exactly the PQ of :class:`.PanopticQuality`.

    Args:
        segment_categories: category index, 0..C-1, of each thing class, then of each semantic
            label, int64 [T + L].
        totals: sum of matched IoUs, then TP, FP and FN, float64 [S, C, 4]; changed in place.
    """
    n, things = len(image.scores), rules.score.shape[1]
    predicted = np.concatenate(
        [
            segment_categories[image.classes],
            segment_categories[things : things + rules.stuff_area.shape[1]],
        ]
    )
    true_segments = len(image.categories) + 2
    size = max(len(image.pixels), true_segments * (len(predicted) + 1))
    part = max(1, _ELEMENTS // size)
    for start in range(0, len(totals), part):
        some = rules.part(slice(start, start + part))
        owner = _paint(image, some)
        _give_stuff(image, some, owner, n)
        shape = (len(owner), true_segments, len(predicted) + 1)
        pair = (np.arange(len(owner))[:, None] * shape[1] + image.truth) * shape[2] + owner + 1
        weights = np.broadcast_to(image.pixels, owner.shape)
        joint = np.bincount(pair.ravel(), weights.ravel(), np.prod(shape)).reshape(shape)
        _count(image, joint, predicted, totals[start : start + part])


def _paint(image: KeptImage, rules: Rules) -> np.ndarray:
    """
    Assign atoms to instances under each of S settings.

    Return each atom's instance index, int64 [S, A]; FREE if no instance owns the atom.
    """
    owner = np.full((len(rules.overlap), len(image.pixels)), FREE)
    starts = image.ends - np.diff(image.ends, prepend=0)
    for i, (start, end, own) in enumerate(zip(starts, image.ends, image.classes, strict=True)):
        if start == end:
            continue
        atoms = image.covered[start:end]
        pixels = image.pixels[atoms]
        there = owner[:, atoms]
        taken = there != FREE
        accepted = (taken @ pixels) / pixels.sum() <= rules.overlap
        accepted &= image.scores[i] >= rules.score[:, own]
        owner[:, atoms] = np.where(accepted[:, None] & ~taken, i, there)
    return owner


def _give_stuff(image: KeptImage, rules: Rules, owner: np.ndarray, first: int) -> None:
    """
    Assign each atom without an instance to its label's stuff segment.

    If this segment is large enough, the atom's ``owner`` becomes ``first`` + the label.
    """
    for label in np.unique(image.labels):
        if label == 0:
            continue
        free = (owner == FREE) & (image.labels == label)
        large = free @ image.pixels >= rules.stuff_area[:, label]
        owner[free & large[:, None]] = first + label


def _count(image: KeptImage, joint: np.ndarray, predicted: np.ndarray, totals: np.ndarray) -> None:
    """
    Match an image's predicted and true segments, and add the PQ counts to ``totals``.

    Args:
        joint: number of pixels that a true segment (numbered as in ``KeptImage.truth``) shares with
            a predicted segment (numbered from 1; 0 for no segment), float64 [S, G + 2, P + 1].
        predicted: categories of the predicted segments, int64 [P].
        totals: sum of matched IoUs, then TP, FP and FN, float64 [S, C, 4]; changed in place.
    """
    iou = ious(joint)
    matching, same, wrong, missed = match(
        *(joint, iou, image.categories, image.is_crowd, image.crowds[predicted], predicted)
    )
    setting, true, _ = found = np.nonzero(matching & same)
    np.add.at(totals[..., 0], (setting, image.categories[true]), iou[found])
    np.add.at(totals[..., 1], (setting, image.categories[true]), 1)
    setting, segment = np.nonzero(wrong)
    np.add.at(totals[..., 2], (setting, predicted[segment]), 1)
    setting, true = np.nonzero(missed)
    np.add.at(totals[..., 3], (setting, image.categories[true]), 1)
