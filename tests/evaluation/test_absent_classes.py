"""Data that lack some of a model's classes: these classes count in no metric."""

import numpy as np
import pytest
import torch
from detectron2.data import MetadataCatalog
from detectron2.structures import BitMasks, Instances
from PIL import Image

import ocr_panoptic
from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.data_file import SemanticSplit, write_data_file
from ocr_panoptic.evaluation.confusion import semantic_scores
from ocr_panoptic.evaluation.instance_evaluator import PanopticInstanceEvaluator
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.predictions import raw_labels
from support.raw_pets import FIRST, RawData
from support.tiny_runs import SEMANTIC_CONFIG, TINY_SEMANTIC

pytestmark = pytest.mark.usefixtures("clean_catalog")

# The classes of a model; the data have cat, dog, sky and grass.
CLASSES = {
    "thing_classes": ["dog", "wolf", "cat"],
    "stuff_classes": ["things", "snow", "grass", "sky"],
}


def prediction(ids: np.ndarray, segments: list[tuple[int, int, bool]]) -> dict:
    info = [dict(zip(("id", "category_id", "isthing"), segment)) for segment in segments]
    things = [(number, label) for number, label, isthing in segments if isthing]
    instances = Instances(ids.shape)
    instances.pred_masks = torch.from_numpy(np.array([ids == number for number, _ in things]))
    instances.pred_boxes = BitMasks(instances.pred_masks).get_bounding_boxes()
    instances.pred_classes = torch.tensor([label for _, label in things])
    instances.scores = torch.ones(len(things))
    return {"panoptic_seg": (torch.from_numpy(ids), info), "instances": instances}


def metrics(evaluator, output: dict) -> dict:
    evaluator.reset()
    evaluator.process([{"file_name": "first.jpg", "image_id": 21}], [output])
    return evaluator.evaluate()


def test_panoptic_metrics(tmp_path):
    """A predicted wolf is no false positive, and each class has its own AP."""
    register_data_sets(RawData(tmp_path).described(), classes=CLASSES)
    metadata = MetadataCatalog.get("pets_train")
    assert {key: metadata.get(key) for key in CLASSES} == CLASSES
    assert metadata.absent_classes == ["wolf", "snow"]
    ids = FIRST.astype(np.int32)
    segments = [(70000, 3, False), (3, 2, False), (500, 0, True)]
    expected = metrics(PanopticEvaluator("pets_train"), prediction(ids * (ids != 900), segments))
    output = prediction(ids, [*segments, (900, 1, True)])
    scores = metrics(PanopticEvaluator("pets_train"), output)
    np.testing.assert_equal(scores, expected)
    assert scores["panoptic_seg"]["PQ"] == 100
    of_boxes = metrics(PanopticInstanceEvaluator("pets_train", ("bbox",)), output)["bbox"]
    assert of_boxes["AP-dog"] == of_boxes["AP"] == pytest.approx(100)
    assert np.isnan(of_boxes["AP-wolf"]) and np.isnan(of_boxes["AP-cat"])  # only a crowd is a cat


def test_semantic_means():
    confusion = np.array([[6, 0, 2], [0, 4, 0], [0, 0, 0]])
    scores = [semantic_scores(confusion, "abc", absent) for absent in ((), ("c",))]
    assert [s["mIoU"] for s in scores] == [87.5, 87.5]
    assert scores[0]["mIoU_truth_or_predicted"] == pytest.approx(175 / 3)
    assert scores[1]["mIoU_truth_or_predicted"] == 87.5
    assert raw_labels("abc", {0: 1, 7: 0}).tolist() == [7, 0, 1]


@pytest.mark.slow
def test_a_model_is_evaluated_on_some_of_its_classes(trained, tiny_data, tmp_path):
    args = trained(*TINY_SEMANTIC, config=SEMANTIC_CONFIG)
    run = args.opts[args.opts.index("OUTPUT_DIR") + 1]
    raw, model = tiny_data / "tiny/raw/val", ocr_panoptic.load(run, **{"TEST.PRECISION": "float32"})
    images = sorted((raw / "images").iterdir())
    files = [raw / "semantic" / f"{image.stem}.png" for image in images]
    truth = np.concatenate([np.asarray(Image.open(file)).ravel() for file in files])
    predicted = np.concatenate([model.predict(image).labels.ravel() for image in images])
    right = np.bincount(truth[truth == predicted], minlength=9).argmax()
    used = [int(right), int(np.bincount(truth[(truth < 9) & (truth != right)]).argmax())]
    classes = [{"name": model.classes[label], "labels": label} for label in used]
    ignored = [*{*range(9)} - {*used}, 255]
    split = {"val": SemanticSplit(raw / "images", raw / "semantic")}
    write_data_file(tmp_path / "some.yaml", "some", split, classes=classes, ignore=ignored)
    scores = ocr_panoptic.evaluate(run, data=tmp_path / "some.yaml", output=tmp_path / "out")
    is_counted = np.isin(truth, used)
    truth, predicted = truth[is_counted], predicted[is_counted]
    ious = [
        np.sum((truth == k) & (predicted == k)) / np.sum((truth == k) | (predicted == k))
        for k in used
    ]
    assert scores["sem_seg"]["mIoU"] == pytest.approx(100 * np.mean(ious))
    assert max(ious) > 0
