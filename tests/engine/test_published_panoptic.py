"""Panoptic-FPN + OCR on miniatures of Cityscapes and ADE20K, from files to predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.published.panoptic import PANOPTIC_RELEASES
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from support import published_trees as trees
from support.tiny_runs import CONFIGS, TINY_OCR
from train_net import main

SMALL = (
    *("MODEL.WEIGHTS", "", "MODEL.RESNETS.WIDTH_PER_GROUP", 16),
    *("MODEL.RESNETS.RES2_OUT_CHANNELS", 32, "SOLVER.MAX_ITER", 1, "SOLVER.STEPS", "()"),
    *("TEST.SAVE_PREDICTIONS", True, "MODEL.PANOPTIC_FPN.COMBINE.STUFF_AREA_LIMIT", 0),
    *("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.0),
    *("MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH", 0.0),
)
CITY = "Cityscapes-PanopticSegmentation/panoptic_fpn_ocr_R_50_65k_bs32"
ADE = "ADE20K-PanopticSegmentation/panoptic_fpn_ocr_R_50_90k_bs16"
CROPS = ("INPUT.CROP.SIZE", "[32, 64]", "INPUT.MIN_SIZE_TRAIN", "(32, 128)")


@pytest.fixture
def run(tmp_path, monkeypatch, make_args):
    """Return a function that trains and evaluates, and returns the folder of the results."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))

    def run(config: str, tests: tuple[str, ...], *opts: object) -> Path:
        train = f"{config.partition('-')[0].lower()}_panoptic_train"
        data = ["DATASETS.TRAIN", f"('{train}',)", "DATASETS.TEST", str(tests)]
        path = CONFIGS / f"{config}.yaml"
        main(make_args(*SMALL, *TINY_OCR, *opts, *data, config=path))
        return tmp_path / "run/inference"

    return run


def check_metrics(folder: Path) -> None:
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["panoptic_seg"]["PQ"] >= 0 and "AP" in metrics["segm"]
    assert metrics["sem_seg"]["mIoU"] >= 0


@pytest.mark.slow
def test_ade20k(run, tmp_path):
    trees.write_ade20k(tmp_path)
    folder = run(ADE, ("ade20k_panoptic_val",)) / "ade20k_panoptic_val"
    check_metrics(folder)
    written = check_predictions(folder, "ade20k")
    assert sorted(a["image_id"] for a in written) == ["ADE_val_00000001", "ADE_val_00000002"]


def check_predictions(folder: Path, release: str) -> list[dict]:
    written = json.loads((folder / "panoptic_predictions.json").read_text())["annotations"]
    categories = {c.id for c in PANOPTIC_RELEASES[f"{release}_panoptic_val"].categories}
    for annotation in written:
        ids = read_panoptic_png(folder / "panoptic_predictions" / annotation["file_name"])
        assert ids.shape == trees.SIZE
        segments = annotation["segments_info"]
        assert {segment["id"] for segment in segments} == set(np.unique(ids).tolist()) - {0}
        assert segments and {segment["category_id"] for segment in segments} <= categories
    return written


@pytest.mark.slow
def test_cityscapes_and_predictions_for_its_server(run, tmp_path):
    """Predictions for the test split have the server's ids of images and categories."""
    trees.write_cityscapes(tmp_path)
    path = tmp_path / "cityscapes/leftImg8bit/test/berlin/berlin_000000_000019_leftImg8bit.png"
    trees.write_image(path, np.random.default_rng(0))
    val, test = "cityscapes_panoptic_val", "cityscapes_panoptic_test"
    folder = run(CITY, (val, test), *CROPS)
    check_metrics(folder / val)
    written = check_predictions(folder / val, "cityscapes")
    assert sorted(a["image_id"] for a in written) == sorted(trees.FRAMES["val"])
    (written,) = check_predictions(folder / test, "cityscapes")
    assert written["image_id"] == "berlin_000000_000019"
    assert written["file_name"] == "berlin_000000_000019_leftImg8bit.png"
    file = folder / test / "panoptic_predictions" / written["file_name"]
    assert Image.open(file).mode == "RGB"
    with pytest.raises(ValueError, match="has no labels, so there is nothing to evaluate"):
        opts = ("TEST.SAVE_PREDICTIONS", False, "OUTPUT_DIR", tmp_path / "other")
        run(CITY, (test,), *CROPS, *opts)
