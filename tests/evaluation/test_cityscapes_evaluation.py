"""Results on Cityscapes, compared with cityscapesscripts on the files for its server."""

from pathlib import Path

import numpy as np
import pytest
from cityscapesscripts.evaluation import evalPixelLevelSemanticLabeling as theirs
from cityscapesscripts.helpers.labels import labels as LABELS

from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.evaluation.sem_seg_predictions import SemSegDump
from support import semantic_samples as samples_of

pytestmark = pytest.mark.usefixtures("clean_catalog")

NAME = "tiny_cityscapes"
CLASSES = sorted((label for label in LABELS if 0 <= label.trainId < 255), key=lambda x: x.trainId)
LABEL_MAP = {label.id: 255 if label.ignoreInEval else label.trainId for label in LABELS[:-1]}
FRAMES = ["frankfurt_000000_000294", "frankfurt_000001_000019", "munster_000173_000019"]


def random_truth_and_prediction(rng, ids, size=(40, 64)):
    truth = rng.choice(np.array(ids, dtype=np.uint8), size)
    right = np.array([LABEL_MAP[i] % 255 for i in range(34)])[truth]
    predicted = np.where(rng.random(size) < 0.6, right, rng.integers(0, 19, size))
    return truth, predicted


@pytest.mark.parametrize(
    "ids",
    [
        list(range(34)),
        # The truth has no sky (a class and a category) and no train; both are predicted.
        [i for i in range(34) if i not in (23, 31)],
        [7, 11, 26],
    ],
)
def test_equals_cityscapesscripts(tmp_path, monkeypatch, ids):
    rng = np.random.default_rng(0)
    truths, predictions = zip(*(random_truth_and_prediction(rng, ids) for _ in FRAMES), strict=True)
    inputs = samples_of.register(
        NAME,
        tmp_path,
        {f"{f}_leftImg8bit.png": truth for f, truth in zip(FRAMES, truths, strict=True)},
        [label.name for label in CLASSES],
        label_map=LABEL_MAP,
        class_categories=[label.category for label in CLASSES],
    )
    # cityscapesscripts distinguishes images by the truth's name.
    files = [tmp_path / "labels" / f"{f}_gtFine_labelIds.png" for f in FRAMES]
    for record, file in zip(inputs, files, strict=True):
        Path(record["sem_seg_file_name"]).rename(file)
        record["sem_seg_file_name"] = str(file)
    outputs = samples_of.outputs_of(predictions)
    dump, evaluator = SemSegDump(NAME, tmp_path), SemSegEvaluator(NAME)
    for each in (dump, evaluator):
        each.reset()
        each.process(inputs, outputs)
    ours = evaluator.evaluate()["sem_seg"]

    folder = str(tmp_path / "sem_seg_predictions")
    options = {"predictionPath": folder, "predictionWalk": None, "evalInstLevelScore": False}
    for key, value in {**options, "JSONOutput": False, "quiet": True}.items():
        monkeypatch.setattr(theirs.args, key, value)
    found = [theirs.getPrediction(theirs.args, str(file)) for file in files]
    expected = theirs.evaluateImgLists(found, [str(file) for file in files], theirs.args)
    assert ours["mIoU_truth_or_predicted"] == pytest.approx(100 * expected["averageScoreClasses"])
    assert ours["mIoU_categories"] == pytest.approx(100 * expected["averageScoreCategories"])
    for label in CLASSES:
        score = 100 * expected["classScores"][label.name]
        if label.id in ids:
            assert ours[f"IoU-{label.name}"] == pytest.approx(score)
        else:  # cityscapesscripts counts 0, or NaN if it is not predicted either
            assert np.isnan(ours[f"IoU-{label.name}"]) and not score > 0
        category = 100 * expected["categoryScores"][label.category]
        assert ours[f"IoU_category-{label.category}"] == pytest.approx(category, nan_ok=True)
