"""AP of random instances equals pycocotools' to the last digit."""

import json
import math

import numpy as np
import pytest
import torch
from detectron2.data import MetadataCatalog
from detectron2.evaluation import COCOEvaluator
from detectron2.structures import Boxes, Instances
from pycocotools import mask

from ocr_panoptic.evaluation.instance_evaluator import InstanceEvaluator

NAME = "random_instances"
SIZE = 160


def ragged(rng: np.random.Generator, box: list[int]) -> np.ndarray:
    """A box with holes in it, bool [SIZE, SIZE]."""
    pixels = np.zeros((SIZE, SIZE), bool)
    x, y, w, h = box
    pixels[y : y + h, x : x + w] = rng.random((h, w)) < 0.9
    pixels[y, x] = True
    return pixels


def random_box(rng: np.random.Generator) -> list[int]:
    """Small, medium or large for COCO (x, y, width, height)."""
    w, h = rng.integers(4, rng.choice([30, 90, SIZE]), 2)
    return [int(v) for v in (rng.integers(SIZE - w), rng.integers(SIZE - h), w, h)]


def moved(rng: np.random.Generator, box: list[int]) -> list[int]:
    x, y, w, h = np.asarray(box) + rng.integers(-4, 5, 4)
    x, y = np.clip([x, y], 0, SIZE - 2)
    return [int(v) for v in (x, y, np.clip(w, 1, SIZE - x), np.clip(h, 1, SIZE - y))]


def samples(seed: int, num_images: int, num_classes: int) -> tuple[dict, list[tuple[dict, dict]]]:
    """
    Truth with crowds and images without any; predictions near the truth and elsewhere, of the
    right class or another, with scores of one decimal, so that many are equal; an image with more
    of them than the 100 that count; a class that has no truth.
    """
    rng = np.random.default_rng(seed)
    categories = [{"id": 3 * k + 1, "name": f"class {k}"} for k in range(num_classes + 1)]
    truth = {"info": {}, "images": [], "annotations": [], "categories": categories}
    predictions = []
    for number in range(num_images):
        image = {"id": 7 * number + 3, "height": SIZE, "width": SIZE}
        truth["images"].append(image)
        found = [(random_box(rng), int(rng.integers(num_classes))) for _ in range(rng.integers(3))]
        for _ in range(0 if number % 5 == 0 else rng.integers(1, 9)):
            box, k = random_box(rng), int(rng.integers(num_classes))
            pixels = ragged(rng, box)
            rle = mask.encode(np.asfortranarray(pixels.astype(np.uint8)))
            rle["counts"] = rle["counts"].decode()
            truth["annotations"].append(
                {
                    **{"id": len(truth["annotations"]) + 1, "image_id": image["id"]},
                    **{"category_id": 3 * k + 1, "iscrowd": int(rng.random() < 0.15)},
                    **{"bbox": box, "area": int(pixels.sum()), "segmentation": rle},
                }
            )
            for _ in range(60 if number == 1 else rng.integers(3)):
                label = k if rng.random() < 0.9 else int(rng.integers(num_classes + 1))
                found.append((moved(rng, box), label))
        if number % 7 == 3:
            found = []
        instances = Instances((SIZE, SIZE))
        x, y, w, h = np.array([box for box, _ in found], float).reshape(-1, 4).T
        instances.pred_boxes = Boxes(torch.tensor(np.stack([x, y, x + w, y + h], 1)))
        instances.pred_classes = torch.tensor([k for _, k in found], dtype=torch.int64)
        instances.scores = torch.tensor(rng.random(len(found)).round(1))
        pixels = [torch.tensor(ragged(rng, box)) for box, _ in found]
        instances.pred_masks = torch.stack(pixels) if pixels else torch.zeros(0, SIZE, SIZE)
        predictions.append(({"image_id": image["id"]}, {"instances": instances}))
    return truth, predictions


@pytest.fixture
def register(tmp_path):
    def make(truth: dict) -> None:
        (tmp_path / "truth.json").write_text(json.dumps(truth))
        MetadataCatalog.get(NAME).set(
            json_file=str(tmp_path / "truth.json"),
            thing_classes=[c["name"] for c in truth["categories"]],
            thing_dataset_id_to_contiguous_id={
                c["id"]: k for k, c in enumerate(truth["categories"])
            },
        )

    yield make
    MetadataCatalog.remove(NAME)


def evaluate(evaluator: COCOEvaluator, predictions: list[tuple[dict, dict]]) -> dict:
    evaluator.reset()
    for record, output in predictions:
        evaluator.process([record], [output])
    return evaluator.evaluate()


def named(truth: dict, predictions: list[tuple[dict, dict]]) -> None:
    """Give the images texts for ids, whose order is another one."""
    for image in truth["images"]:
        image["id"] = f"ADE_{image['id']}"
    for entry in (*truth["annotations"], *(record for record, _ in predictions)):
        entry["image_id"] = f"ADE_{entry['image_id']}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_equal_to_pycocotools(register, seed):
    truth, predictions = samples(seed, num_images=30, num_classes=4)
    if seed == 3:
        named(truth, predictions)
    assert any(a["iscrowd"] for a in truth["annotations"])
    register(truth)
    tasks = ("bbox", "segm")
    ours = evaluate(InstanceEvaluator(NAME, tasks), predictions)
    official = COCOEvaluator(NAME, tasks=tasks, use_fast_impl=False)
    theirs = evaluate(official, predictions)
    np.testing.assert_equal(ours, theirs)  # every metric and class, both tasks; NaN where NaN
    assert math.isnan(ours["segm"]["AP-class 4"])
    assert 0 < ours["segm"]["AP"] < 100 and not math.isnan(ours["bbox"]["APl"])


def test_texts_and_integers(register):
    """Ids say nothing but which image is meant (and which of equal scores comes first)."""
    truth, predictions = samples(0, num_images=12, num_classes=3)
    register(truth)
    expected = evaluate(InstanceEvaluator(NAME, ("bbox", "segm")), predictions)
    ids = sorted(image["id"] for image in truth["images"])
    new = {number: k if k < 6 else f"{k:02d}" for k, number in enumerate(ids)}
    for image in truth["images"]:
        image["id"] = new[image["id"]]
    for entry in (*truth["annotations"], *(record for record, _ in predictions)):
        entry["image_id"] = new[entry["image_id"]]
    register(truth)
    np.testing.assert_equal(
        evaluate(InstanceEvaluator(NAME, ("bbox", "segm")), predictions), expected
    )


def test_nothing_is_predicted(register):
    truth, predictions = samples(0, num_images=5, num_classes=2)
    register(truth)
    for _, output in predictions:
        output["instances"] = output["instances"][:0]
    results = evaluate(InstanceEvaluator(NAME, ("bbox", "segm")), predictions)
    assert math.isnan(results["bbox"]["AP"]) and math.isnan(results["segm"]["AP"])
