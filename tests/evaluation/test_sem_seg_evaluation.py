"""Semantic-only data sets: labels as predictions, label maps, categories, files."""

import numpy as np
import pytest
import torch
from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog
from PIL import Image

from ocr_panoptic import add_ocr_config
from ocr_panoptic.evaluation.build import build_evaluator
from ocr_panoptic.evaluation.confusion import category_scores, confusion_figure, write_confusion
from ocr_panoptic.evaluation.image_scores import SEMANTIC_KINDS
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.evaluation.sem_seg_predictions import SemSegDump, raw_labels
from ocr_panoptic.evaluation.stored import image_scores_file, read_table, write_evaluation
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


class TestEvaluator:
    def test_by_hand(self, inputs, tmp_path):
        """Sums over the two images; in such small images every pixel is near a boundary."""
        confidences = [np.array([[0.9, 0.8, 0.9], [0.5, 0.9, 0.6]]), np.full((2, 2), 0.7)]
        outputs = samples_of.outputs_of(PREDICTED)
        for output, confidence in zip(outputs, confidences, strict=True):
            output["confidence"] = torch.from_numpy(confidence.astype(np.float32))
        evaluator = SemSegEvaluator(NAME, tmp_path / "out")
        metrics = run(evaluator, inputs, outputs)["sem_seg"]
        assert evaluator.total.confusion.tolist() == CONFUSION
        found = [metrics[f"IoU-{name}"] for name in CLASSES]
        assert found == pytest.approx([100 * 2 / 4, 100 * 1 / 4, 100 * 2 / 3])
        assert (
            metrics["mIoU"] == metrics["mIoU_truth_or_predicted"] == pytest.approx(sum(found) / 3)
        )
        assert metrics["mBoundaryIoU"] == pytest.approx(metrics["mIoU"])
        assert metrics["BoundaryIoU-car"] == pytest.approx(metrics["IoU-car"])
        # By bin: three pixels at 0.9, all right; 0.8 right; 0.6 wrong; three at 0.7 (a fourth has
        # no class), of these one is right.
        gaps = 3 * abs(1 - 0.9) + abs(1 - 0.8) + abs(0 - 0.6) + abs(1 - 2.1)
        assert metrics["ECE"] == pytest.approx(100 * gaps / 8, rel=1e-6)
        assert metrics["mIoU_low"] <= metrics["mIoU"] <= metrics["mIoU_high"]

        scores = read_table(image_scores_file(tmp_path / "out", "sem_seg"))
        # IoU in image a: road 2 / 3, car 1 / 2, sky 1; in b: road 0, sky 1 / 2.
        by_hand = {"images/a.jpg": (2 / 3 + 1 / 2 + 1) / 3, "images/b.png": (0 + 1 / 2) / 2}
        assert [row["file_name"] for row in scores] == sorted(by_hand, key=by_hand.get)
        for row in scores:
            assert float(row["mIoU"]) == pytest.approx(100 * by_hand[row["file_name"]])
            losses = sum(float(row[kind]) for kind in SEMANTIC_KINDS)
            assert losses == pytest.approx(100 - float(row["mIoU"]))

    def test_one_class_has_no_mean(self, tmp_path, caplog):
        truth = {"a.jpg": np.array([[0, 255]], np.uint8)}
        inputs = samples_of.register("one", tmp_path, truth, CLASSES)
        found = run(SemSegEvaluator("one"), inputs, samples_of.outputs_of([np.zeros((1, 2))]))
        scores = found["sem_seg"]
        assert scores["IoU-road"] == scores["pACC"] == scores["fwIoU"] == 100
        for name in ("mIoU", "mIoU_truth_or_predicted", "mACC", "mBoundaryIoU", "mIoU_low"):
            assert np.isnan(scores[name]), name
        assert "one: the true labels show one class only" in caplog.text

    def test_outputs_of_another_model(self, inputs):
        evaluator = SemSegEvaluator(NAME)
        for label, found in ((3, r"0\.\.3"), (-1, r"-1\.\.0")):
            with pytest.raises(ValueError, match=rf"a\.jpg: .* labels {found} .*NUM_CLASSES to 3"):
                evaluator.process(inputs[:1], samples_of.outputs_of([np.full((2, 3), label)]))
        with pytest.raises(ValueError, match=r"a\.jpg: .* has \['instances'\]; expected 'labels'"):
            evaluator.process(inputs[:1], [{"instances": None}])
        with pytest.raises(ValueError, match=r"a\.png: the prediction has size \[3, 2\]"):
            evaluator.process(inputs[:1], samples_of.outputs_of([np.zeros((3, 2))]))


class TestCategories:
    def test_by_hand(self):
        # a: {0, 2}, b: {1}, c: {3}, which neither truth nor prediction holds.
        confusion = np.array([[5, 1, 2, 0], [1, 4, 0, 0], [0, 3, 6, 0], [0] * 4])
        metrics = category_scores(confusion, ["a", "b", "a", "c"])
        assert metrics == pytest.approx(
            {
                "mIoU_categories": 100 * (13 / 18 + 4 / 9) / 2,
                "IoU_category-a": 100 * 13 / (13 + 4 + 1),
                "IoU_category-b": 100 * 4 / (4 + 1 + 4),
                "IoU_category-c": np.nan,
            },
            nan_ok=True,
        )

    def test_they_are_not_in_the_table_of_classes(self, inputs, tmp_path):
        MetadataCatalog.get(NAME).class_categories = ["ground", "vehicle", "above"]
        results = run(SemSegEvaluator(NAME), inputs, samples_of.outputs_of(PREDICTED))
        # Each category has one class, and every class occurs.
        assert results["sem_seg"]["mIoU_categories"] == pytest.approx(results["sem_seg"]["mIoU"])
        write_evaluation(results, tmp_path, {})
        found = [
            (row["class"], float(row["IoU"])) for row in read_table(tmp_path / "per_class.csv")
        ]
        assert found == [(name, results["sem_seg"][f"IoU-{name}"]) for name in CLASSES]


class TestConfusionFiles:
    def test_csv(self, tmp_path):
        write_confusion(np.array([[2**40, 1], [0, 3]]), ["a, b", "c"], tmp_path / "x")
        text = (tmp_path / "x/confusion_matrix.csv").read_text()
        assert text.splitlines() == ['truth \\ prediction,"a, b",c', f'"a, b",{2**40},1', "c,0,3"]

    def test_picture_shows_shares_of_the_true_class(self):
        figure = confusion_figure(np.array([[3, 1, 0], [0, 0, 0], [0, 0, 7]]), "abc")
        axes = figure.axes[0]
        shown = axes.images[0].get_array().filled(np.nan)
        np.testing.assert_array_equal(shown, [[75, 25, 0], [np.nan] * 3, [0, 0, 100]])
        numbers = {(*text.get_position(), text.get_text()) for text in axes.texts}
        assert numbers == {(0, 0, "75"), (1, 0, "25"), (2, 2, "100")}  # (column, row, percent)
        assert [label.get_text() for label in axes.get_yticklabels()] == list("abc")


class TestDump:
    def test_labels_of_the_files(self, inputs, tmp_path):
        dump = SemSegDump(NAME, tmp_path)
        assert run(dump, inputs, samples_of.outputs_of(PREDICTED)) is None
        folder = tmp_path / "sem_seg_predictions"
        assert sorted(path.name for path in folder.iterdir()) == ["a.png", "b.png"]
        assert np.asarray(Image.open(folder / "a.png")).tolist() == [[7, 26, 11], [26, 7, 7]]
        assert np.asarray(Image.open(folder / "b.png")).tolist() == [[11, 26], [7, 26]]

    def test_no_label_map(self):
        assert raw_labels("abc", None).tolist() == [0, 1, 2]
        assert raw_labels(["x"] * 300, None).dtype == np.uint16

    def test_class_without_a_label(self):
        with pytest.raises(ValueError, match=r"no label for sky; expected .* 3 stuff_classes"):
            raw_labels(CLASSES, {7: 0, 26: 1, 0: 255})

    def test_two_images_with_the_same_stem(self, tmp_path):
        truths = {"x/0.jpg": RAW["a.jpg"], "y/0.jpg": RAW["a.jpg"]}
        samples_of.register("one_stem", tmp_path, truths, CLASSES, label_map=LABEL_MAP)
        with pytest.raises(ValueError, match=r"images/x/0\.jpg and images/y/0\.jpg; rename"):
            SemSegDump("one_stem", tmp_path)


class TestBuildEvaluator:
    def test_files(self, inputs, cfg, tmp_path):
        cfg.TEST.SAVE_PREDICTIONS = True
        evaluator = build_evaluator(cfg, NAME, tmp_path / "out")
        results = run(evaluator, inputs, samples_of.outputs_of(PREDICTED))
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            *("confusion_matrix.csv", "confusion_matrix.png", "sem_seg_per_image.csv"),
            "sem_seg_predictions",
        }
        rows = (tmp_path / "out/confusion_matrix.csv").read_text().splitlines()[1:]
        assert [[int(n) for n in row.split(",")[1:]] for row in rows] == CONFUSION
        assert results["sem_seg"]["mIoU"] == results["sem_seg"]["mIoU_truth_or_predicted"]

    def test_no_labels(self, cfg, tmp_path):
        inputs = samples_of.register("unseen", tmp_path, {"a.jpg": None}, CLASSES)
        with pytest.raises(ValueError, match=r"'unseen' has no labels.*SAVE_PREDICTIONS"):
            build_evaluator(cfg, "unseen", tmp_path)
        cfg.TEST.SAVE_PREDICTIONS = True
        evaluator = build_evaluator(cfg, "unseen", tmp_path)
        assert run(evaluator, inputs, samples_of.outputs_of(PREDICTED[:1])) == {}
        png = Image.open(tmp_path / "sem_seg_predictions/a.png")
        assert np.array_equal(np.asarray(png), PREDICTED[0])
