"""PQ on Cityscapes, compared with cityscapesscripts on the files for its server."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cityscapesscripts.evaluation import evalPanopticSemanticLabeling as theirs
from detectron2.data import DatasetCatalog, MetadataCatalog

from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.evaluation.panoptic_dump import PanopticDump
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.formats.coco_panoptic import read_segment_ids
from support import published_trees as trees
from support.panoptic_samples import faulty_copy

NAME = "cityscapes_panoptic_val"


def cityscapesscripts_results(root: Path, predictions: Path) -> dict:
    """Return cityscapesscripts' results for the JSON and PNGs, computed in this process."""
    truth = root / "cityscapes/gtFine/cityscapes_panoptic_val"
    content = json.loads(truth.with_suffix(".json").read_text())
    categories = {category["id"]: category for category in content["categories"]}
    found = json.loads(predictions.with_suffix(".json").read_text())["annotations"]
    found = {annotation["image_id"]: annotation for annotation in found}
    pairs = [(annotation, found[annotation["image_id"]]) for annotation in content["annotations"]]
    counted = theirs.pq_compute_single_core(0, pairs, truth, predictions, categories)
    return theirs.average_pq(counted, categories)


@pytest.mark.slow
@pytest.mark.usefixtures("clean_catalog")
def test_equals_cityscapesscripts(tmp_path):
    trees.write_cityscapes(tmp_path)
    register_published([], tmp_path)
    metadata = MetadataCatalog.get(NAME)
    contiguous = {
        True: metadata.thing_dataset_id_to_contiguous_id,
        False: metadata.stuff_dataset_id_to_contiguous_id,
    }
    numbers = {(kind, k): n for kind, ids in contiguous.items() for n, k in ids.items()}
    categories = [{"id": number} for number in numbers.values() if number]
    rng = np.random.default_rng(0)
    evaluator = PanopticEvaluator(NAME)
    dump = PanopticDump(NAME, tmp_path / "results")
    for record in DatasetCatalog.get(NAME):
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
            assert ours[f"{metric.upper()}{suffix}"] == 100 * expected[group][metric]
    for number, values in expected["per_class"].items():
        name = next(c.name for c in trees.id2label.values() if c.id == number)
        assert ours[f"PQ-{name}"] == 100 * values["pq"]
