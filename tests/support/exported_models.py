"""Build small random models, and export them to ONNX files with ``ocr-panoptic export``."""

from pathlib import Path

import pytest
import torch
from detectron2.layers import Conv2d, ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone, build_model
from torch import Tensor, nn

from ocr_panoptic.cli import call
from ocr_panoptic.config.files import load_config
from ocr_panoptic.predict.complete import complete_config

from .tiny_runs import TINY, TINY_OCR, TINY_SEMANTIC, make_labels_vary, pixels

SHAPES = {f"p{i}": ShapeSpec(channels=8, stride=2**i) for i in range(2, 7)}


@BACKBONE_REGISTRY.register()
class TinyPyramid(Backbone):
    """A small backbone with features p2 to p6, at strides 4 to 64 like an FPN's."""

    size_divisibility = 32

    def __init__(self, cfg, input_shape: ShapeSpec):
        super().__init__()
        self.stem = Conv2d(3, 8, 5, stride=4, padding=2)
        self.next = nn.ModuleList(Conv2d(8, 8, 3, stride=2, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = [self.stem(x)]
        for conv in self.next:
            maps.append(conv(maps[-1].relu()))
        return dict(zip(SHAPES, maps, strict=True))

    def output_shape(self) -> dict[str, ShapeSpec]:
        return SHAPES


PANOPTIC = [
    *TINY,
    *TINY_OCR,
    *("MODEL.BACKBONE.NAME", "TinyPyramid", "MODEL.OCR.NORM", "BN"),
    *("MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.3", "DATASETS.TEST", "('tiny_val',)"),
    *("MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH", "0.35"),
]
SEMANTIC = [
    *TINY_OCR,
    *TINY_SEMANTIC,
    *("MODEL.BACKBONE.NAME", "TinyPyramid", "MODEL.OCR.NORM", "BN"),
    *("MODEL.SEM_SEG_HEAD.IN_FEATURES", "['p3']", "MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES"),
    *("['p3']", "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "16", "INPUT.MIN_SIZE_TEST", "49"),
    *("MODEL.TIMM.NAME", "hrnet_w48", "MODEL.TIMM.OUTPUT_STRIDE", "32"),
]


def build(config: Path, options: list[str], image: Path) -> nn.Module:
    cfg = load_config(str(config), [*options, "MODEL.DEVICE", "cpu"])
    complete_config(cfg)
    torch.manual_seed(0)
    model, colours = build_model(cfg).eval(), pixels(image)
    if cfg.INPUT.FORMAT == "BGR":
        model.roi_heads.box_predictor.cls_score.weight.data *= 300
        colours = colours[:, :, ::-1]
    make_labels_vary(model, {"image": torch.as_tensor(colours.transpose(2, 0, 1).copy())})
    return model


def assert_json_close(found: object, expected: object) -> None:
    """Check that JSON values are equal; floats may differ by 2e-4."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(map(found.get, expected)), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            assert_json_close(*pair)
    else:
        is_float = isinstance(expected, float)
        assert found == (pytest.approx(expected, abs=2e-4) if is_float else expected)


def export(config: Path, options: list[str], folder: Path, model: nn.Module) -> Path:
    """
    Export a model with ``ocr-panoptic export``; return the ONNX file.

    The command itself checks that the file's outputs equal PyTorch's.
    """
    torch.save({"model": model.state_dict()}, folder / "model.pth")
    files = ["--config-file", config, "--weights", folder / "model.pth"]
    call("export", [*map(str, files), "--output", str(folder / "model.onnx"), *options])
    return folder / "model.onnx"
