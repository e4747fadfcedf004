"""INPUT.CHANNELS 4, from the data file to pictures and a report."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic import cli
from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import SemanticSplit, write_data_file
from ocr_panoptic.data.faults import DataFaults
from support.tiny_runs import SEMANTIC_CONFIG
from train_net import main, setup

SIZE = 48
SEEDS = {"train": range(8), "val": range(100, 104)}
FOUR = ("INPUT.CHANNELS", 4, "MODEL.PIXEL_MEAN", "[120., 120., 120., 120.]")
FOUR += ("MODEL.PIXEL_STD", "[60., 60., 60., 60.]")
QUICK = ("SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", 0.003, "SOLVER.WARMUP_ITERS", 0)
QUICK += ("MODEL.TIMM.NAME", "resnet10t", "SOLVER.MAX_ITER", 30, "SOLVER.IMS_PER_BATCH", 4)


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a noise image, uint8 [SIZE, SIZE, 4], and the pixels that its last channel shows."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    angle, offset = rng.uniform(0, 2 * np.pi), rng.uniform(-8, 8)
    near = x * np.cos(angle) + y * np.sin(angle) > offset
    image = rng.uniform(0, 255, (SIZE, SIZE, 4))
    image[:, :, 3] = np.where(near, 60, 180) + rng.normal(0, 6, near.shape)
    return image.clip(0, 255).astype(np.uint8), near


def describe(raw: Path, channels: int) -> Path:
    splits = {s: SemanticSplit(raw / s / "images", raw / s / "labels") for s in SEEDS}
    file, classes = raw / "depth.yaml", ["far", "near"]
    write_data_file(file, "depth", splits, classes=classes, channels=channels)
    return file


@pytest.mark.slow
def test_a_class_that_the_fourth_channel_shows(tmp_path, monkeypatch, semantic_args):
    """The model is trained, evaluated and drawn; other numbers of channels are refused."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    raw = tmp_path / "raw"
    for split, seeds in SEEDS.items():
        for kind in ("images", "labels"):
            (raw / split / kind).mkdir(parents=True)
        for seed in seeds:
            image, near = scene(seed)
            Image.fromarray(image).save(raw / split / f"images/{seed}.png")
            Image.fromarray(near.astype(np.uint8)).save(raw / split / f"labels/{seed}.png")
    check_data([describe(raw, 3)], 1)  # RGBA files can be read as colours
    with pytest.raises(DataFaults, match=r"0.png: the image has 4 channels, expected 1 \(INPUT.CH"):
        check_data([describe(raw, 1)], 1)
    describe(raw, 4)
    opts = ("DATASETS.TRAIN", "('depth_train',)", "DATASETS.TEST", "('depth_val',)", *QUICK)
    with pytest.raises(ValueError, match="INPUT.CHANNELS is 3, but the images of depth_train have"):
        setup(semantic_args(*opts))
    args = semantic_args(*opts, *FOUR, "INPUT.BRIGHTNESS_SHIFT", 0)
    assert main(args)["sem_seg"]["mIoU"] > 85  # without this channel it is below 60

    run, out = ["--config-file", str(SEMANTIC_CONFIG)], tmp_path / "predicted"
    weights = str(tmp_path / "run/model_final.pth")
    command = [*run, "--weights", weights, "--input", str(raw / "val/images")]
    assert not cli.call("predict", [*command, "--output", str(out), "--overlays", *args.opts])
    labels = np.asarray(Image.open(out / "labels/100.png"))
    assert (labels == scene(100)[1]).mean() > 0.9
    with Image.open(out / "overlays/100.jpg") as overlay:
        assert overlay.size == (SIZE, SIZE) and overlay.mode == "RGB"
    cli.call("report", [*run, "--num-images", "1", *args.opts, "MODEL.WEIGHTS", weights])
    assert "depth_val" in (tmp_path / "run/index.html").read_text()
    with pytest.raises(ValueError, match="CHANNELS is 4; .*3 channels"):
        command = [*run, "--weights", weights, "--output", str(tmp_path / "a.onnx"), *args.opts]
        cli.call("export", command)
