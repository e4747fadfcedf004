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
CONFIG = {
    "cityscapes": "Cityscapes-PanopticSegmentation/panoptic_fpn_ocr_R_50_65k_bs32",
    "ade20k": "ADE20K-PanopticSegmentation/panoptic_fpn_ocr_R_50_90k_bs16",
}
CROPS = ("INPUT.CROP.SIZE", "[32, 64]", "INPUT.MIN_SIZE_TRAIN", "(32, 128)")
IMAGES = {"cityscapes": trees.FRAMES["val"], "ade20k": ["ADE_val_00000001", "ADE_val_00000002"]}
BERLIN = "berlin_000000_000019"  # an image of the test split, whose truth only the server has


def predictions(folder: Path, release: str) -> list[dict]:
    written = json.loads((folder / "panoptic_predictions.json").read_text())["annotations"]
    categories = {c.id for c in PANOPTIC_RELEASES[f"{release}_panoptic_val"].categories}
    for annotation in written:
        file = folder / "panoptic_predictions" / annotation["file_name"]
        ids, segments = read_panoptic_png(file), annotation["segments_info"]
        assert ids.shape == trees.SIZE and Image.open(file).mode == "RGB"
        assert {segment["id"] for segment in segments} == set(np.unique(ids).tolist()) - {0}
        assert segments and {segment["category_id"] for segment in segments} <= categories
    return written


@pytest.mark.slow
@pytest.mark.parametrize("release", CONFIG)
def test_a_run(tmp_path, monkeypatch, make_args, release):
    """Predictions for the test split have the server's ids of images and categories."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    getattr(trees, f"write_{release}")(tmp_path)
    val, test = f"{release}_panoptic_val", f"{release}_panoptic_test"
    tests, crops = (val,), ()
    if release == "cityscapes":
        path = tmp_path / f"cityscapes/leftImg8bit/test/berlin/{BERLIN}_leftImg8bit.png"
        trees.write_image(path, np.random.default_rng(0))
        tests, crops = (val, test), CROPS

    def run(tests: tuple[str, ...], *opts: object) -> None:
        data = ["DATASETS.TRAIN", f"('{release}_panoptic_train',)", "DATASETS.TEST", str(tests)]
        config = CONFIGS / f"{CONFIG[release]}.yaml"
        main(make_args(*SMALL, *TINY_OCR, *crops, *opts, *data, config=config))

    run(tests)
    folder = tmp_path / "run/inference"
    metrics = json.loads((folder / val / "metrics.json").read_text())
    assert metrics["panoptic_seg"]["PQ"] >= 0 and "AP" in metrics["segm"]
    assert metrics["sem_seg"]["mIoU"] >= 0
    written = predictions(folder / val, release)
    assert sorted(a["image_id"] for a in written) == sorted(IMAGES[release])
    if release == "cityscapes":
        (written,) = predictions(folder / test, release)
        assert written["image_id"] == BERLIN
        assert written["file_name"] == f"{BERLIN}_leftImg8bit.png"
        with pytest.raises(ValueError, match="has no labels, so there is nothing to evaluate"):
            run((test,), "TEST.SAVE_PREDICTIONS", False, "OUTPUT_DIR", tmp_path / "other")
