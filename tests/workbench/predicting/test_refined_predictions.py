"""TEST.SEGFIX in predictions, in evaluations and for single images."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.modeling import build_model

from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.labels import read_label_image
from ocr_panoptic.formats.offsets import moved, source_pixels
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.segfix import load_segfix_config, segfix_config
from ocr_panoptic.predict.task import refined
from ocr_panoptic.predict.trained_model import build_trained_model
from ocr_panoptic.workbench.refining.refine import predicted_offsets
from support.tiny_runs import CONFIGS, images_of, predict
from train_net import main as train_net

pytestmark = pytest.mark.slow

CONFIG = str(CONFIGS / "quick_schedules/segfix_R_18_scenes.yaml")
READ = {"labels": read_label_image, "confidence": read_label_image, "panoptic": read_panoptic_png}


@pytest.fixture(scope="session")
def segfix(tmp_path_factory) -> Path:
    """Return weights of a SegFix whose offsets vary, with its config beside them."""
    folder = tmp_path_factory.mktemp("segfix")
    cfg = load_segfix_config(CONFIG, ["MODEL.DEVICE", "cpu", "MODEL.SEGFIX.CHANNELS", "16"])
    torch.manual_seed(0)
    model = build_model(cfg).eval()
    for branch in (model.sem_seg_head.boundary, model.sem_seg_head.direction):
        torch.nn.init.normal_(branch[1].weight)
    torch.save({"model": model.state_dict()}, folder / "model.pth")
    (folder / "config.yaml").write_text(cfg.dump())
    return folder / "model.pth"


@pytest.fixture
def expected(segfix, tiny_data) -> Callable[[str, np.ndarray, int], np.ndarray]:
    """Return a function (image name, map, scale) -> map refined by SegFix."""
    opts = ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", str(segfix)]
    cfg = load_segfix_config(str(segfix.with_name("config.yaml")), opts)
    offsets = predicted_offsets(cfg, {path.stem: path for path in images_of(tiny_data)})

    def refined(name: str, values: np.ndarray, scale: int) -> np.ndarray:
        return moved(values, source_pixels(offsets[name](), scale))

    return refined


@pytest.mark.parametrize("kind", ["semantic", "panoptic"])
def test_predict(kind, model_of, call, segfix, expected, tiny_data, tmp_path):
    keys = ("TEST.SEGFIX.WEIGHTS", segfix, "TEST.SEGFIX.SCALE", 3)
    images = tiny_data / "tiny/raw/val/images"
    assert call(model_of(kind), images, output="plain") == 0
    assert call(model_of(kind, *keys), images, output="refined") == 0
    changed = 0
    for what, read in READ.items():
        files = sorted((tmp_path / "plain" / what).rglob("*.png"))
        assert len(files) == (0 if (kind, what) == ("semantic", "panoptic") else 4)
        for file in files:
            before, after = read(file), read(tmp_path / "refined" / what / file.name)
            np.testing.assert_array_equal(after, expected(file.stem, before, 3))
            changed += np.count_nonzero(before != after)
    assert changed > 100
    if kind == "panoptic":
        annotations = json.loads((tmp_path / "refined/panoptic.json").read_text())["annotations"]
        for annotation in annotations:
            ids = read_panoptic_png(tmp_path / "refined/panoptic" / annotation["file_name"])
            areas = {s["id"]: s["area"] for s in annotation["segments_info"]}
            found = dict(zip(*(x.tolist() for x in np.unique(ids, return_counts=True))))
            assert areas == {number: area for number, area in found.items() if number}


@pytest.mark.parametrize("kind, optimized", [("semantic", True), ("panoptic", False)])
def test_evaluation(kind, optimized, model_of, segfix, expected, tmp_path):
    kinds = {"semantic": ("sem_seg", read_label_image), "panoptic": ("panoptic", read_panoptic_png)}
    name, read = kinds[kind]
    accuracies = []
    for output, keys in (("plain", ()), ("refined", ("TEST.SEGFIX.WEIGHTS", segfix))):
        keys += ("TEST.SAVE_PREDICTIONS", True, "TEST.OPTIMIZED", optimized)
        _, config, _, weights, *opts = model_of(kind, *keys, "OUTPUT_DIR", tmp_path / output)
        words = ["--config-file", config, "--eval-only", *opts, "MODEL.WEIGHTS", weights]
        accuracies.append(train_net(argument_parser().parse_args(words))["sem_seg"]["pACC"])
    assert accuracies[0] != accuracies[1]
    files = sorted((tmp_path / "plain/inference").glob(f"*/{name}_predictions/*.png"))
    assert len(files) == 4
    for file in files:
        after = tmp_path / "refined" / file.relative_to(tmp_path / "plain")
        np.testing.assert_array_equal(read(after), expected(file.stem, read(file), 2))


def test_single_images_with_another_channel_order_and_size(model_of, segfix, expected, tiny_data):
    """SegFix sees the original image, whatever the model sees, as in a report."""
    keys = ("TEST.SEGFIX.WEIGHTS", segfix, "INPUT.FORMAT", "BGR", "INPUT.MIN_SIZE_TEST", 48)
    _, config, _, weights, *opts = model_of("semantic", *keys)
    cfg = load_config(config, [*opts, "MODEL.WEIGHTS", weights])
    complete_config(cfg)
    model = build_trained_model(cfg)
    image = images_of(tiny_data)[0]
    bgr = read_picture(image)
    plain = predict(cfg, model, bgr)["labels"].numpy()
    found = predict(cfg, refined(cfg, model), bgr)["labels"].numpy()
    np.testing.assert_array_equal(found, expected(image.stem, plain, 2))
    assert (found != plain).any()


def test_refusals_before_the_prediction(model_of, call, segfix, tiny_data, tmp_path):
    images, weights = tiny_data / "tiny/raw/val/images", tmp_path / "model.pth"
    weights.write_bytes(segfix.read_bytes())
    of, config = "TEST.SEGFIX.WEIGHTS", model_of("semantic")[1]
    for keys, message in (
        ((of, tmp_path / "gone.pth"), "config .*/config.yaml of .*gone.pth does not exist"),
        ((of, weights), "Set TEST.SEGFIX.CONFIG_FILE"),
        (("TEST.SEGFIX.SCALE", 1), "SEGFIX.SCALE is 1 .* effect only with TEST.SEGFIX.WEIGHTS"),
        ((of, segfix, "TEST.SEGFIX.CONFIG_FILE", config), "OCRSemanticSegmentor; expected SegFix"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            call(model_of("semantic", *keys), images)
    model = ["--config-file", CONFIG, "--weights", str(segfix), "DATASETS.TEST", "('tiny_val',)"]
    model += ["DATASETS.TRAIN", "('tiny_train',)", "MODEL.DEVICE", "cpu"]
    with pytest.raises(ValueError, match="not classes. Name its weights in TEST.SEGFIX"):
        call(model, images)
    given = [of, str(weights), "TEST.SEGFIX.CONFIG_FILE", CONFIG]
    assert segfix_config(load_config(config, ["MODEL.DEVICE", "cpu", *given])) is not None
