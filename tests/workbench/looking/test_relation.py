"""The clickable relation, read back from what the page holds."""

import base64

import numpy as np
import pytest

from ocr_panoptic.workbench.looking.relation import MAX_CELLS, relation_figure

CLASSES = [("sky", "rgb(1,2,3)"), ("sand", "rgb(4,5,6)"), ("ball", "rgb(7,8,9)")]


def decode(figure) -> np.ndarray:
    weights = np.frombuffer(base64.b64decode(figure.weights), np.uint8)
    return weights.reshape(len(figure.classes), figure.rows, figure.columns)


def test_weights_and_the_mark():
    """3 classes over 4 x 6 pixels of an 8 x 12 image; the ball is the rarest class."""
    relation = np.zeros((3, 4, 6))
    relation[0] = 0.2
    relation[1] = np.linspace(0, 0.8, 24).reshape(4, 6)
    relation[2] = 0.8 - relation[1]
    labels = np.zeros((8, 12), int)
    labels[4:] = 1
    labels[4:8, 8:] = 2  # cells (2..3, 4..5)
    labels[0] = -1
    figure = relation_figure(relation, labels, CLASSES, "data:x")
    np.testing.assert_allclose(decode(figure) / 255, relation, atol=0.5 / 255)
    assert figure.true_class == "ball"
    assert figure.row in (2, 3) and figure.column in (4, 5)


def test_the_mark_is_in_its_class():
    """The median of a ring is outside it."""
    labels = np.zeros((9, 9), int)
    labels[2:7, 2:7] = 1
    labels[3:6, 3:6] = 0
    figure = relation_figure(np.full((2, 9, 9), 0.5), labels, CLASSES[:2], "")
    assert labels[figure.row, figure.column] == 1


def test_a_large_relation_is_sampled():
    relation = np.random.default_rng(0).dirichlet(np.ones(2), (100, 200)).transpose(2, 0, 1)
    figure = relation_figure(relation, np.zeros((50, 100), int), CLASSES[:2], "")
    assert (figure.rows, figure.columns) == (25, 50) and figure.columns <= MAX_CELLS
    np.testing.assert_allclose(decode(figure) / 255, relation[:, 2::4, 2::4], atol=0.5 / 255)


@pytest.mark.parametrize("void", [-1, 3])
def test_an_image_without_labels_has_no_mark(void):
    assert relation_figure(np.ones((3, 2, 2)) / 3, np.full((4, 4), void), CLASSES, "") is None
