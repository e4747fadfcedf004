"""SegFix's mapper gives offset labels of the augmented image, for both kinds of data."""

import numpy as np
import pytest
from detectron2.data import DatasetCatalog

from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.labels import read_labels, read_true_labels
from ocr_panoptic.formats.offsets import IGNORED
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.task import task_of
from ocr_panoptic.segfix.truth import class_segments, panoptic_segments, true_offset_labels
from support.tiny_runs import CONFIGS

CONFIG = str(CONFIGS / "quick_schedules/segfix_R_18_scenes.yaml")


@pytest.fixture
def make(tiny_data, clean_catalog):
    def make_mapper(names: tuple[str, ...], *opts: object, is_train: bool = True):
        fixed = ["DATASETS.TRAIN", str(names), "DATASETS.TEST", "()", "MODEL.DEVICE", "cpu"]
        cfg = load_config(CONFIG, [*fixed, *map(str, opts)])
        complete_config(cfg, training=True)
        records = [DatasetCatalog.get(name)[0] for name in names]
        return task_of(cfg).mapper(cfg, is_train), records

    return make_mapper


WHOLE = ("INPUT.CROP.ENABLED", False, "INPUT.BRIGHTNESS_SHIFT", 0)


def truth_of(record: dict, mirrored: bool = False, distance: int = 5) -> np.ndarray:
    if "pan_seg_file_name" in record:
        crowds = [s["id"] for s in record["segments_info"] if s["iscrowd"]]
        segments = panoptic_segments(read_panoptic_png(record["pan_seg_file_name"]), crowds)
    else:
        segments = class_segments(read_labels(record["sem_seg_file_name"], None))
    segments = segments[:, ::-1].copy() if mirrored else segments
    return true_offset_labels(segments, distance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_train", "tiny_sem_train"])
def test_labels_belong_to_the_augmented_image(make, name):
    mapper, (record,) = make((name,), *WHOLE)
    seen = set()
    for _ in range(12):
        found = mapper(record)
        labels, image = found["sem_seg"].numpy(), found["image"].numpy()
        mirrored = not np.array_equal(labels, truth_of(record))
        if mirrored:
            np.testing.assert_array_equal(labels, truth_of(record, mirrored=True))
        seen.add((mirrored, image.tobytes()))
    assert len(seen) == 2 and {mirrored for mirrored, _ in seen} == {True, False}
    first, second = (np.frombuffer(image, np.uint8).reshape(3, 64, 64) for _, image in seen)
    np.testing.assert_array_equal(first, second[:, :, ::-1])


def test_instances_are_separate_segments_in_panoptic_records(make):
    mapper, _ = make(("tiny_train",), *WHOLE, "INPUT.RANDOM_FLIP", "none")
    others = 0
    for record in DatasetCatalog.get("tiny_train"):
        labels = mapper(record)["sem_seg"].numpy()
        np.testing.assert_array_equal(labels, truth_of(record))
        classes = read_true_labels(record)  # all things have one label
        others += np.any(labels != true_offset_labels(class_segments(classes), 5))
    assert others  # offsets at pixels between touching things


def test_a_crop_has_the_offsets_of_the_whole_image(make):
    mapper, (record,) = make(("tiny_sem_train",), "INPUT.CROP.SIZE", [32, 40])
    whole = [truth_of(record), truth_of(record, mirrored=True)]
    for _ in range(5):
        labels = mapper(record)["sem_seg"].numpy()
        assert any(
            np.array_equal(labels, truth[y : y + 32, x : x + 40])
            for truth in whole
            for y in range(33)
            for x in range(25)
        )


def test_distances_are_measured_in_the_resized_image(make):
    key = ("MODEL.SEGFIX.BOUNDARY_DISTANCE", 3, "INPUT.RANDOM_FLIP", "none")
    mapper, (record,) = make(("tiny_sem_train",), *WHOLE, *key, "INPUT.MIN_SIZE_TRAIN", "(128,)")
    labels = read_labels(record["sem_seg_file_name"], None)
    large = class_segments(labels).repeat(2, axis=0).repeat(2, axis=1)
    expected = true_offset_labels(large, 3)
    np.testing.assert_array_equal(mapper(record)["sem_seg"], expected)


def test_in_tests_the_truth_has_the_size_of_the_file(make):
    mapper, (record,) = make(("tiny_sem_train",), "INPUT.MIN_SIZE_TEST", 32, is_train=False)
    found = mapper(record)
    assert found["image"].shape == (3, 32, 32)
    np.testing.assert_array_equal(found["sem_seg"], truth_of(record))
    without = {k: v for k, v in record.items() if k != "sem_seg_file_name"}
    assert "sem_seg" not in mapper(without)


def test_data_with_other_classes_are_trained_on_together(make):
    mapper, records = make(("tiny_train", "tiny_sem_train"))
    for found in map(mapper, records):  # a large crop is ignored outside the image
        assert found["image"].shape == (3, 128, 128) and found["sem_seg"].shape == (128, 128)
        assert (found["sem_seg"][64:] == IGNORED).all() and (found["sem_seg"][:64] < 18).any()
