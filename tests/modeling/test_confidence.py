"""Scores of which none is the highest."""

import math

import pytest
import torch

from ocr_panoptic.modeling.inference import check_decided, confident_argmax


@pytest.mark.parametrize(
    "scores",
    [(math.nan, 1, 2), (1, math.nan, 2), (2, 1, math.nan), (math.inf, 1, math.inf)],
)
def test_scores_that_are_not_finite(scores):
    classes = [torch.full((1, 1, 2, 3), 0.5) for _ in scores]
    for of_class, score in zip(classes, scores, strict=True):
        of_class[0, 0, 1, 2] = score
    with pytest.raises(FloatingPointError, match="scores of 1 of 6 pixels are not finite"):
        check_decided(confident_argmax(classes)[1])


def test_a_class_that_is_never_predicted():
    """Its logit may be -inf."""
    classes = [torch.full((1, 1, 1, 1), score) for score in (0.0, -math.inf, math.log(3))]
    labels, confidence = confident_argmax(classes)
    assert labels.item() == 2 and confidence.item() == pytest.approx(0.75)
