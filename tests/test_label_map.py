"""Labels of files to labels of training."""

import numpy as np
import pytest

from ocr_panoptic.formats.labels import apply_label_map, look_up, pixel_counts

MAP = {0: 255, 7: 0, 8: 1, 300: 1, 1000: 2}


def test_by_hand():
    raw = np.array([[7, 8, 300], [0, 1000, 7]], dtype=np.uint16)
    labels = apply_label_map(raw, MAP)
    assert labels.tolist() == [[0, 1, 1], [255, 2, 0]]
    assert labels.dtype == np.uint8


def test_labels_beyond_uint8():
    labels = apply_label_map(np.array([[1, 0]], dtype=np.uint8), {0: 65535, 1: 299})
    assert labels.tolist() == [[299, 65535]]


def test_identity():
    raw = np.array([[3, 255]], dtype=np.uint8)
    assert apply_label_map(raw, None) is raw


def test_labels_outside_the_map():
    raw = np.array([[7, 9, 9], [600, 0, 8]], dtype=np.uint16)
    with pytest.raises(
        ValueError, match=r"lacks: 9 \(2 pixels\), 600 .* expected 0, 7..8, 300, 1000"
    ):
        apply_label_map(raw, MAP)


@pytest.mark.parametrize("values", [1, 11, 256, 300])
def test_bytes_and_others_alike(values):
    labels = np.random.default_rng(0).integers(0, values, (5, 7))
    labels = labels.astype(np.uint8 if values <= 256 else np.uint16)
    table = np.random.default_rng(1).integers(0, 256, values).astype(np.uint8)
    assert np.array_equal(look_up(table, labels), table[labels])
    counts = pixel_counts(labels)
    assert counts[: labels.max() + 1].tolist() == np.bincount(labels.ravel()).tolist()
    assert counts.sum() == labels.size
