"""INPUT.CHANNELS 4, from the data file to pictures and a report."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic import cli
from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, write_data_file
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.engine import Trainer, setup
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from support.scripts import load_script
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG

SIZE = 48
SEEDS = {"train": range(8), "val": range(100, 104)}
FOUR = ("INPUT.CHANNELS", 4, "MODEL.PIXEL_MEAN", "[120., 120., 120., 120.]")
FOUR += ("MODEL.PIXEL_STD", "[60., 60., 60., 60.]")
QUICK = ("SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", 0.003, "SOLVER.WARMUP_ITERS", 0)


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """An image uint8 [SIZE, SIZE, 4] whose colours are noise, and where it is near, which only the
    last channel, a distance, shows: one side of a random line."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    angle, offset = rng.uniform(0, 2 * np.pi), rng.uniform(-8, 8)
    near = x * np.cos(angle) + y * np.sin(angle) > offset
    image = rng.uniform(0, 255, (SIZE, SIZE, 4))
    image[:, :, 3] = np.where(near, 60, 180) + rng.normal(0, 6, near.shape)
    return image.clip(0, 255).astype(np.uint8), near


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    return tmp_path


@pytest.fixture
def semantic_data(root) -> Path:
    """RGBA PNGs and label PNGs: 0 far, 1 near. Returns the folder."""
    raw = root / "raw"
    for split, seeds in SEEDS.items():
        for kind in ("images", "labels"):
            (raw / split / kind).mkdir(parents=True)
        for seed in seeds:
            image, near = scene(seed)
            Image.fromarray(image).save(raw / split / f"images/{seed}.png")
            Image.fromarray(near.astype(np.uint8)).save(raw / split / f"labels/{seed}.png")
    return raw


def describe_semantic(raw: Path, **channels: int) -> None:
    splits = {s: SemanticSplit(raw / s / "images", raw / s / "labels") for s in SEEDS}
    write_data_file(raw / "depth.yaml", "depth", splits, classes=["far", "near"], **channels)


@pytest.fixture
def depth_args(semantic_args):
    data = ("DATASETS.TRAIN", "('depth_train',)", "DATASETS.TEST", "('depth_val',)")
    settings = ("MODEL.TIMM.NAME", "resnet10t", "SOLVER.MAX_ITER", 30, "SOLVER.IMS_PER_BATCH", 4)
    return lambda *opts: semantic_args(*data, *settings, *QUICK, *opts)


def train(args) -> dict:
    trainer = Trainer(*setup(args))
    trainer.resume_or_load(False)
    trainer.train()
    return trainer._last_eval_results


@pytest.mark.slow
def test_a_class_that_the_fourth_channel_shows(semantic_data, root, depth_args):
    """Trained, evaluated, predicted, drawn and reported; without that channel it is not learnt."""
    describe_semantic(semantic_data, channels=4)
    args = depth_args(*FOUR, "INPUT.BRIGHTNESS_SHIFT", 0)
    assert train(args)["sem_seg"]["mIoU"] > 85
    run = ["--config-file", str(SEMANTIC_CONFIG)]
    weights = ["MODEL.WEIGHTS", str(root / "run/model_final.pth")]
    images = str(semantic_data / "val/images")

    out = root / "predicted"
    command = [*run, "--weights", weights[1], "--input", images, "--output", str(out)]
    assert not cli.call("predict", [*command, "--overlays", *args.opts])
    labels = np.asarray(Image.open(out / "labels/100.png"))
    assert (labels == scene(100)[1]).mean() > 0.9
    with Image.open(out / "overlays/100.jpg") as overlay:
        assert overlay.size == (SIZE, SIZE) and overlay.mode == "RGB"

    cli.call("report", [*run, "--num-images", "1", *map(str, args.opts), *weights])
    assert "depth_val" in (root / "run/index.html").read_text()

    export = [*run, "--weights", weights[1], "--output", str(root / "a.onnx"), *args.opts]
    with pytest.raises(ValueError, match="CHANNELS is 4; an exported model takes images of 3"):
        load_script("tools/export_onnx.py").main(export)


@pytest.mark.slow
def test_without_that_channel(semantic_data, root, depth_args):
    describe_semantic(semantic_data)
    assert train(depth_args("SOLVER.MAX_ITER", 15))["sem_seg"]["mIoU"] < 60


@pytest.mark.slow
def test_another_number_of_channels_is_told_before_training(semantic_data, root, depth_args):
    describe_semantic(semantic_data, channels=1)
    with pytest.raises(DataFaults, match=r"0.png: the image has 4 channels, expected 1 \(INPUT.CH"):
        check_data(semantic_data / "depth.yaml", 1)
    describe_semantic(semantic_data, channels=4)
    with pytest.raises(ValueError, match="INPUT.CHANNELS is 3, but the images of depth_val have 4"):
        setup(depth_args("DATASETS.TRAIN", "('depth_val',)"))


@pytest.fixture
def panoptic_data(root) -> Path:
    """RGBA PNGs, whose opacity is the distance, with near and far as stuff and a thing, a white
    box."""
    raw = root / "raw"
    categories = [
        {"id": 1, "name": "box", "isthing": 1, "color": [0, 0, 0]},
        {"id": 2, "name": "far", "isthing": 0, "color": [1, 1, 1]},
        {"id": 3, "name": "near", "isthing": 0, "color": [2, 2, 2]},
    ]
    for split, seeds in SEEDS.items():
        for kind in ("images", "panoptic"):
            (raw / split / kind).mkdir(parents=True)
        images, annotations = [], []
        for seed in seeds:
            image, near = scene(seed)
            ids = np.where(near, 3, 2).astype(np.int32)
            ids[:12, :12] = 1
            image[:12, :12] = 255
            name = f"{seed}.png"
            Image.fromarray(image).save(raw / split / "images" / name)
            write_panoptic_png(raw / split / "panoptic" / name, ids)
            images.append({"id": seed, "file_name": name, "height": SIZE, "width": SIZE})
            segments = [{"id": n, "category_id": n} for n in np.unique(ids).tolist()]
            annotations.append({"image_id": seed, "file_name": name, "segments_info": segments})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (raw / split / "panoptic.json").write_text(json.dumps(content))
    return raw


def describe_panoptic(raw: Path, channels: int) -> Path:
    names = ("images", "panoptic.json", "panoptic")
    splits = {s: PanopticSplit(*(raw / s / name for name in names)) for s in SEEDS}
    write_data_file(raw / "boxes.yaml", "boxes", splits, channels=channels)
    return raw / "boxes.yaml"


@pytest.mark.slow
def test_images_are_checked_again_for_other_channels(panoptic_data):
    check_data([describe_panoptic(panoptic_data, 3)], 1)  # in colour, whatever the files are
    check_data([describe_panoptic(panoptic_data, 4)], 1)
    with pytest.raises(DataFaults, match="has 4 channels, expected 1"):
        check_data([describe_panoptic(panoptic_data, 1)], 1)


@pytest.mark.slow
def test_panoptic_fpn_with_four_channels(panoptic_data, root, make_args):
    describe_panoptic(panoptic_data, 4)
    opts = ("DATASETS.TRAIN", "('boxes_train',)", "DATASETS.TEST", "('boxes_val',)", *QUICK)
    opts += (*FOUR[:2], "MODEL.PIXEL_MEAN", [120.0] * 4, "MODEL.PIXEL_STD", [60.0] * 4)
    args = make_args(*opts, config=OCR_CONFIG)
    train(args)
    out = root / "predicted"
    command = ["--config-file", str(OCR_CONFIG), "--weights", str(root / "run/model_final.pth")]
    command += ["--input", str(panoptic_data / "val/images"), "--output", str(out)]
    assert not cli.call("predict", [*command, *args.opts])
    assert len([*(out / "panoptic").iterdir()]) == 4
