"""Semantic-only data sets: labels as predictions, label maps, categories, files."""

import numpy as np
import pytest
import torch
from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog
from PIL import Image

from ocr_panoptic import add_ocr_config
from ocr_panoptic.evaluation.confusion import category_scores, confusion_figure
from ocr_panoptic.evaluation.image_scores import SEMANTIC_KINDS
from ocr_panoptic.evaluation.predictions import SemSegDump, raw_labels
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.evaluation.stored import image_scores_file, read_table, write_evaluation
from ocr_panoptic.formats.labels import COLOURED
from ocr_panoptic.predict.evaluators import build_evaluator
from support import semantic_samples as samples_of

pytestmark = pytest.mark.usefixtures("clean_catalog")

NAME = "tiny_semantic"
CLASSES = ["road", "car", "sky"]
# Two raw labels mean sky; the lower label is written.
LABEL_MAP = {0: 255, 7: 0, 11: 2, 26: 1, 40: 2, 99: 255}
# road car sky | void road car         sky road | void sky
RAW = {
    "a.jpg": np.array([[7, 26, 40], [99, 7, 26]], dtype=np.uint8),
    "b.png": np.array([[11, 7], [0, 40]], dtype=np.uint8),
}
PREDICTED = [np.array([[0, 1, 2], [1, 0, 0]]), np.array([[2, 1], [0, 1]])]
#            road car sky, predicted
CONFUSION = [[2, 1, 0], [1, 1, 0], [0, 1, 2]]


@pytest.fixture
def inputs(tmp_path):
    return samples_of.register(NAME, tmp_path, RAW, CLASSES, label_map=LABEL_MAP)


@pytest.fixture
def cfg():
    cfg = get_cfg()
    add_ocr_config(cfg)
    return cfg


def run(evaluator, inputs, outputs):
    evaluator.reset()
    evaluator.process(inputs, outputs)
    return evaluator.evaluate()


def test_by_hand(inputs, cfg, tmp_path):
    """Sums over the two images; in such small images every pixel is near a boundary."""
    confidences = [np.array([[0.9, 0.8, 0.9], [0.5, 0.9, 0.6]]), np.full((2, 2), 0.7)]
    outputs = samples_of.outputs_of(PREDICTED)
    for output, confidence in zip(outputs, confidences, strict=True):
        output["confidence"] = torch.from_numpy(confidence.astype(np.float32))
    metadata, folder = MetadataCatalog.get(NAME), tmp_path / "out"
    metadata.class_categories = ["ground", "vehicle", "above"]
    cfg.TEST.SAVE_PREDICTIONS = True
    results = run(build_evaluator(cfg, NAME, folder), inputs, outputs)
    metrics = results["sem_seg"]
    found = [metrics[f"IoU-{name}"] for name in CLASSES]
    assert found == pytest.approx([100 * 2 / 4, 100 * 1 / 4, 100 * 2 / 3])
    assert metrics["mIoU"] == metrics["mIoU_truth_or_predicted"] == pytest.approx(sum(found) / 3)
    assert metrics["mIoU_categories"] == pytest.approx(metrics["mIoU"])  # each has one class
    assert metrics["mBoundaryIoU"] == pytest.approx(metrics["mIoU"])
    assert metrics["BoundaryIoU-car"] == pytest.approx(metrics["IoU-car"])
    # By bin: three pixels at 0.9, all right; 0.8 right; 0.6 wrong; three at 0.7 (a fourth has
    # no class), of these one is right.
    gaps = 3 * abs(1 - 0.9) + abs(1 - 0.8) + abs(0 - 0.6) + abs(1 - 2.1)
    assert metrics["ECE"] == pytest.approx(100 * gaps / 8, rel=1e-6)
    assert metrics["mIoU_low"] <= metrics["mIoU"] <= metrics["mIoU_high"]

    assert {path.name for path in folder.iterdir()} == {
        *("confusion_matrix.csv", "confusion_matrix.png", "sem_seg_per_image.csv"),
        "sem_seg_predictions",
    }
    rows = (folder / "confusion_matrix.csv").read_text().splitlines()[1:]
    assert [[int(n) for n in row.split(",")[1:]] for row in rows] == CONFUSION
    scores = read_table(image_scores_file(folder, "sem_seg"))
    # IoU in image a: road 2 / 3, car 1 / 2, sky 1; in b: road 0, sky 1 / 2.
    by_hand = {"images/a.jpg": (2 / 3 + 1 / 2 + 1) / 3, "images/b.png": (0 + 1 / 2) / 2}
    assert [row["file_name"] for row in scores] == sorted(by_hand, key=by_hand.get)
    for row in scores:
        assert float(row["mIoU"]) == pytest.approx(100 * by_hand[row["file_name"]])
        losses = sum(float(row[kind]) for kind in SEMANTIC_KINDS)
        assert losses == pytest.approx(100 - float(row["mIoU"]))
    pngs = {png.name: np.asarray(Image.open(png)) for png in folder.glob("sem_seg_predictions/*")}
    expected = {"a.png": [[7, 26, 11], [26, 7, 7]], "b.png": [[11, 26], [7, 26]]}
    assert {name: labels.tolist() for name, labels in pngs.items()} == expected

    write_evaluation(results, tmp_path, {})  # the categories are not in the table of classes
    rows = [(row["class"], float(row["IoU"])) for row in read_table(tmp_path / "per_class.csv")]
    assert rows == list(zip(CLASSES, found, strict=True))


def test_one_class_has_no_mean(tmp_path, caplog):
    truth = {"a.jpg": np.array([[0, 255]], np.uint8)}
    inputs = samples_of.register("one", tmp_path, truth, CLASSES)
    found = run(SemSegEvaluator("one"), inputs, samples_of.outputs_of([np.zeros((1, 2))]))
    scores = found["sem_seg"]
    assert scores["IoU-road"] == scores["pACC"] == scores["fwIoU"] == 100
    for name in ("mIoU", "mIoU_truth_or_predicted", "mACC", "mBoundaryIoU", "mIoU_low"):
        assert np.isnan(scores[name]), name
    assert "one: the ground truth contains only one class" in caplog.text


def test_categories_by_hand():
    # a: {0, 2}, b: {1}, c: {3}, which neither truth nor prediction holds.
    confusion = np.array([[5, 1, 2, 0], [1, 4, 0, 0], [0, 3, 6, 0], [0] * 4])
    expected = {
        "mIoU_categories": 100 * (13 / 18 + 4 / 9) / 2,
        "IoU_category-a": 100 * 13 / (13 + 4 + 1),
        "IoU_category-b": 100 * 4 / (4 + 1 + 4),
        "IoU_category-c": np.nan,
    }
    found = category_scores(confusion, ["a", "b", "a", "c"])
    assert found == pytest.approx(expected, nan_ok=True)


def test_the_picture_shows_shares_of_the_true_class():
    figure = confusion_figure(np.array([[3, 1, 0], [0, 0, 0], [0, 0, 7]]), "abc")
    axes = figure.axes[0]
    shown = axes.images[0].get_array().filled(np.nan)
    np.testing.assert_array_equal(shown, [[75, 25, 0], [np.nan] * 3, [0, 0, 100]])
    numbers = {(*text.get_position(), text.get_text()) for text in axes.texts}
    assert numbers == {(0, 0, "75"), (1, 0, "25"), (2, 2, "100")}  # (column, row, percent)
    assert [label.get_text() for label in axes.get_yticklabels()] == list("abc")


@pytest.mark.parametrize(
    "classes, label_map, expected",
    [
        ("abc", None, [0, 1, 2]),
        ("abc", LABEL_MAP, [7, 26, 11]),
        ("ab", {COLOURED | 5: 0, COLOURED | 9: 1, 0: 255}, [0, 1]),  # the files have colours
    ],
)
def test_labels_in_the_files(classes, label_map, expected):
    assert raw_labels(classes, label_map).tolist() == expected
    assert raw_labels("x" * 300, None).dtype == np.uint16
    with pytest.raises(ValueError, match="these have none: sky"):
        raw_labels(["road", "sky"], {7: 0, COLOURED | 9: 1})


def test_two_images_with_the_same_stem(tmp_path):
    truths = {"x/0.jpg": RAW["a.jpg"], "y/0.jpg": RAW["a.jpg"]}
    samples_of.register("one_stem", tmp_path, truths, CLASSES, label_map=LABEL_MAP)
    with pytest.raises(ValueError, match=r"images/x/0\.jpg and images/y/0\.jpg in .* Rename"):
        SemSegDump("one_stem", tmp_path)


def test_images_without_labels(cfg, tmp_path):
    inputs = samples_of.register("unseen", tmp_path, {"a.jpg": None}, CLASSES)
    with pytest.raises(ValueError, match=r"'unseen' has no labels.*SAVE_PREDICTIONS"):
        build_evaluator(cfg, "unseen", tmp_path)
    cfg.TEST.SAVE_PREDICTIONS = True
    evaluator = build_evaluator(cfg, "unseen", tmp_path)
    assert run(evaluator, inputs, samples_of.outputs_of(PREDICTED[:1])) == {}
    png = Image.open(tmp_path / "sem_seg_predictions/a.png")
    assert np.array_equal(np.asarray(png), PREDICTED[0])
