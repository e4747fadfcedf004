"""``ocr-panoptic predict`` on tiny models with random weights, in this process."""

from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model

from ocr_panoptic import cli
from ocr_panoptic.config.files import load_config
from ocr_panoptic.predict.complete import complete_config
from support.tiny_runs import (
    OCR_CONFIG,
    SEMANTIC_CONFIG,
    TINY_SEMANTIC,
    images_of,
    make_labels_vary,
    pixels,
)

KINDS = {"panoptic": (OCR_CONFIG, ()), "semantic": (SEMANTIC_CONFIG, TINY_SEMANTIC)}
# Untrained scores are around 1 / 5.
LOW = ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.01"]
LOW += ["MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH", "0.1"]
KNOWN_WEIGHTS: dict[str, Path] = {}


@pytest.fixture
def images(tiny_data) -> Path:
    return tiny_data / "tiny/raw/val/images"


@pytest.fixture
def model_of(tiny_data, make_args, tmp_path_factory):
    """Return a function that gives the command line of a model that finds many segments."""

    def make(kind: str, *opts: object) -> list[str]:
        config, own = KINDS[kind]
        args = make_args(*own, config=config)
        if kind not in KNOWN_WEIGHTS:
            cfg = load_config(args.config_file, args.opts)
            complete_config(cfg)
            torch.manual_seed(0)
            model = build_model(cfg).eval()
            image = pixels(images_of(tiny_data)[0]).transpose(2, 0, 1)
            make_labels_vary(model, {"image": torch.as_tensor(image.copy())})
            KNOWN_WEIGHTS[kind] = tmp_path_factory.mktemp("weights") / "model.pth"
            torch.save({"model": model.state_dict()}, KNOWN_WEIGHTS[kind])
        named = ["--config-file", config, "--weights", KNOWN_WEIGHTS[kind]]
        low = LOW if kind == "panoptic" else []
        return [*map(str, named), *args.opts, *low, *map(str, opts)]

    return make


@pytest.fixture
def call(tmp_path):
    """Return a function that predicts into tmp_path/out and returns the exit status."""

    def run(model: list[str], source: object, *flags: object, output: str = "out") -> int:
        named = ["--input", source, "--output", tmp_path / output, *flags]
        return cli.call("predict", [*model[:4], *map(str, named), *model[4:]])

    return run
