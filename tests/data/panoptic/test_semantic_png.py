"""Semantic labels against a per-segment transcription of the rule."""

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.coco_panoptic import write_panoptic_png
from ocr_panoptic.data.panoptic.semantic_png import semantic_labels, write_semantic_png


def transcription(ids, segments, label_of):
    output = np.full(ids.shape, 255, np.uint8)
    for segment in segments:
        output[ids == segment["id"]] = label_of[segment["category_id"]]
    return output


@pytest.mark.parametrize("num_segments", [0, 1, 3, 60])
def test_equals_transcription(num_segments):
    rng = np.random.default_rng(num_segments)
    ids_in_use = rng.choice(2**24 - 1, num_segments + 2, replace=False) + 1
    pixels = rng.choice(np.append(ids_in_use, 0), (37, 53)).astype(np.int32)
    # The last two ids are in no segment, which makes them void.
    segments = [
        {"id": int(number), "category_id": int(rng.choice([0, 5, 90]))}
        for number in ids_in_use[:-2]
    ]
    label_of = {0: 3, 5: 0, 90: 254}
    labels = semantic_labels(pixels, segments, label_of)
    assert labels.dtype == np.uint8
    assert np.array_equal(labels, transcription(pixels, segments, label_of))


def test_unknown_category_names_the_file(tmp_path):
    write_panoptic_png(tmp_path / "a.png", np.ones((2, 2), int))
    with pytest.raises(ValueError, match=r"a\.png: category 8 has no semantic label"):
        write_semantic_png(
            tmp_path / "a.png", [{"id": 1, "category_id": 8}], {}, tmp_path / "out.png"
        )


def test_file(tmp_path):
    write_panoptic_png(tmp_path / "a.png", np.array([[1, 2], [3, 0]]))
    segments = [{"id": 1, "category_id": 8}, {"id": 2, "category_id": 9}]
    output = tmp_path / "new" / "out.png"
    ids = write_semantic_png(tmp_path / "a.png", segments, {8: 0, 9: 7}, output)
    assert ids.tolist() == [[1, 2], [3, 0]]
    with Image.open(output) as image:
        assert image.mode == "L"
        assert np.asarray(image).tolist() == [[0, 7], [255, 255]]
    assert [path.name for path in output.parent.iterdir()] == ["out.png"]
