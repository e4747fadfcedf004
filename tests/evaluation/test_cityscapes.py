"""Results on Cityscapes, compared with cityscapesscripts on the files for its server."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cityscapesscripts.evaluation import evalPanopticSemanticLabeling as panoptic_script
from cityscapesscripts.evaluation import evalPixelLevelSemanticLabeling as semantic_script
from cityscapesscripts.helpers.labels import labels as LABELS
from detectron2.data import DatasetCatalog, MetadataCatalog

from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.predictions import PanopticDump, SemSegDump
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegEvaluator
from ocr_panoptic.formats.coco_panoptic import read_segment_ids
from support import published_trees as trees
from support import semantic_samples as samples_of
from support.panoptic_samples import faulty_copy

pytestmark = pytest.mark.usefixtures("clean_catalog")

NAME, PANOPTIC = "tiny_cityscapes", "cityscapes_panoptic_val"
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
def test_classes_equal_cityscapesscripts(tmp_path, monkeypatch, ids):
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
        monkeypatch.setattr(semantic_script.args, key, value)
    found = [semantic_script.getPrediction(semantic_script.args, str(file)) for file in files]
    expected = semantic_script.evaluateImgLists(
        found, [str(file) for file in files], semantic_script.args
    )
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


def cityscapesscripts_results(root: Path, predictions: Path) -> dict:
    """Return cityscapesscripts' results for the JSON and PNGs, computed in this process."""
    truth = root / "cityscapes/gtFine/cityscapes_panoptic_val"
    content = json.loads(truth.with_suffix(".json").read_text())
    categories = {category["id"]: category for category in content["categories"]}
    found = json.loads(predictions.with_suffix(".json").read_text())["annotations"]
    found = {annotation["image_id"]: annotation for annotation in found}
    pairs = [(annotation, found[annotation["image_id"]]) for annotation in content["annotations"]]
    counted = panoptic_script.pq_compute_single_core(0, pairs, truth, predictions, categories)
    return panoptic_script.average_pq(counted, categories)


@pytest.mark.slow
def test_panoptic_quality_equals_cityscapesscripts(tmp_path):
    trees.write_cityscapes(tmp_path)
    register_published([], tmp_path)
    metadata = MetadataCatalog.get(PANOPTIC)
    contiguous = {
        True: metadata.thing_dataset_id_to_contiguous_id,
        False: metadata.stuff_dataset_id_to_contiguous_id,
    }
    numbers = {(kind, k): n for kind, ids in contiguous.items() for n, k in ids.items()}
    categories = [{"id": number} for number in numbers.values() if number]
    rng = np.random.default_rng(0)
    evaluator = PanopticEvaluator(PANOPTIC)
    dump = PanopticDump(PANOPTIC, tmp_path / "results")
    for record in DatasetCatalog.get(PANOPTIC):
        segments = [
            {"id": s["id"], "category_id": numbers[s["isthing"], s["category_id"]]}
            for s in record["segments_info"]
        ]
        truth = read_segment_ids(record)
        ids, predicted = faulty_copy(rng, truth, segments, categories)
        for segment in predicted:
            segment["isthing"] = segment["category_id"] in contiguous[True]
            segment["category_id"] = contiguous[segment["isthing"]][segment["category_id"]]
        output = {"panoptic_seg": (torch.from_numpy(ids), predicted)}
        evaluator.process([record], [output])
        dump.process([record], [output])
    dump.evaluate()
    ours = evaluator.evaluate()["panoptic_seg"]

    expected = cityscapesscripts_results(tmp_path, tmp_path / "results/panoptic_predictions")
    assert expected["All"]["n"] == 19 and 0.1 < expected["All"]["pq"] < 0.9
    for group, suffix in (("All", ""), ("Things", "_th"), ("Stuff", "_st")):
        for metric in ("pq", "sq", "rq"):
            theirs = 100 * expected[group][metric]  # Python 3.12 sums floats more precisely
            assert ours[f"{metric.upper()}{suffix}"] == pytest.approx(theirs, rel=1e-14, abs=0)
    for number, values in expected["per_class"].items():
        name = next(c.name for c in trees.id2label.values() if c.id == number)
        assert ours[f"PQ-{name}"] == 100 * values["pq"]
