"""Small models with every scheme, from export to the runner's files; and refused models."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from detectron2.data import transforms as T
from detectron2.modeling import build_model
from PIL import Image
from timm.layers import Conv2dSame
from torch import Tensor, nn

from ocr_panoptic import cli
from ocr_panoptic.checkpoint.start import Start
from ocr_panoptic.cli import export as cli_export
from ocr_panoptic.config.files import load_config
from ocr_panoptic.modeling import OCRSemanticSegmentor, deploy
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES, build_context
from ocr_panoptic.modeling.timm_parts import EvenConv2dSame
from ocr_panoptic.predict import run_onnx
from ocr_panoptic.workbench.exporting import onnx_file, parity
from ocr_panoptic.workbench.exporting.export import export_model
from ocr_panoptic.workbench.exporting.graphs import build_graph
from ocr_panoptic.workbench.exporting.operators import TRANSLATIONS
from ocr_panoptic.workbench.exporting.parity import check_parity, match_segments, parity_faults
from support.exported_models import PANOPTIC, SEMANTIC, assert_json_close, build, export
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, pixels


def content_of(file: Path) -> dict:
    """Return a JSON file's content, without detections' masks: random ones are 0.5 everywhere."""
    content = json.loads(file.read_text())
    for instance in content.get("instances", []):
        del instance["segmentation"]
    return content


def assert_as_predict_writes(config: Path, options: list[str], folder: Path) -> None:
    """Compare both programs on images with equal names, and one in a subfolder."""
    first, second, *_ = sorted((folder / "images").iterdir())
    (folder / "images/below").mkdir()
    Image.open(first).save(folder / "images" / f"{first.stem}.png")
    second.rename(folder / "images/below" / second.name)
    images, (found, expected) = ["--input", folder / "images"], (folder / "onnx", folder / "torch")
    assert run_onnx.main([str(a) for a in [folder / "model.onnx", *images, "--output", found]]) == 0
    files = ["--config-file", config, "--weights", folder / "model.pth", *images]
    assert cli.call("predict", [*map(str, files), "--output", str(expected), *options]) == 0
    by_name = folder / "loaded"
    files = ["--weights", folder / "model.onnx", *images, "--output", by_name]
    assert cli.call("predict", [*map(str, files)]) == 0
    jsons = {path.relative_to(expected) for path in expected.rglob("*.json")}
    assert jsons == {path.relative_to(by_name) for path in by_name.rglob("*.json")}
    for file in jsons:
        outs = [out for out in (found, by_name) if (out / file).exists()]
        for out in outs:
            assert_json_close(*(content_of(o / file) for o in (out, expected)))
    pngs = {path.relative_to(expected) for path in expected.rglob("*.png")}
    for out in (found, by_name):
        assert pngs == {path.relative_to(out) for path in out.rglob("*.png")}
        for png in pngs:
            difference = np.subtract(*(pixels(o / png).astype(int) for o in (out, expected)))
            assert np.abs(difference).max() <= (png.parts[0] == "confidence"), png


@pytest.fixture
def image(tiny_data, tmp_path) -> Path:
    shutil.copytree(tiny_data / "tiny/raw/val/images", tmp_path / "images")
    return sorted((tmp_path / "images").iterdir())[0]


@pytest.mark.slow
def test_panoptic_model(image, tmp_path, capsys):
    # test_semantic_model is not residual
    options = [*PANOPTIC, "MODEL.OCR.RESIDUAL", "True", "MODEL.OCR.DOWNSAMPLE", "2"]
    model = build(OCR_CONFIG, options, image)
    path = export(OCR_CONFIG, options, tmp_path, model)
    assert "| 97x259  | 64x171" in capsys.readouterr().out
    folder, broken = tmp_path / "second", tmp_path / "broken.png"
    broken.write_text("no image")
    again = [*map(str, [path, "--input", broken, image, "--output", folder]), "--overlays"]
    assert run_onnx.main(again) == 1
    said = capsys.readouterr()
    assert "broken.png: cannot be read as an image" in said.err and said.err.count("\n") == 1
    assert "Predictions for 1 of 2 images" in said.out
    for name in ("panoptic", "overlays"):
        assert [file.stem for file in (folder / name / "images").iterdir()] == [image.stem]
    kinds = {s["isthing"] for s in run_onnx.Model(path)(run_onnx.read_image(image))["segments"]}
    assert kinds == {True, False}, "the test needs things and stuff"
    assert run_onnx.main(again) == 1
    assert "second is not a new or empty folder" in capsys.readouterr().err
    assert_as_predict_writes(OCR_CONFIG, options, tmp_path)


@pytest.mark.slow
def test_semantic_model(image, tmp_path):
    model = build(SEMANTIC_CONFIG, SEMANTIC, image)
    path = export(SEMANTIC_CONFIG, SEMANTIC, tmp_path, model)
    assert onnx.load(path).ir_version == 8  # later ones need a newer onnxruntime than 1.16
    exported = run_onnx.Model(path)
    assert len(np.unique(exported(run_onnx.read_image(image))["labels"])) > 1
    assert not exported.is_panoptic and exported.classes[0].keys() == {"name", "color"}
    assert_as_predict_writes(SEMANTIC_CONFIG, SEMANTIC, tmp_path)


class Schemes(nn.Module):
    """All schemes that can be exported, on one map, except those made from parts of others."""

    MADE_OF_OTHERS = ("none", "OCR", "PPM-OCR", "ASP-OCR")  # test_semantic_model has OCR

    def __init__(self):
        super().__init__()
        options = ["MODEL.OCR.CHANNELS", 16, "MODEL.OCR.KEY_CHANNELS", 8, "MODEL.OCR.NORM", "BN"]
        options += ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", 5, "MODEL.CONTEXT.DILATIONS", "[1, 2]"]
        self.schemes = nn.ModuleDict()
        for name, (cls, _) in CONTEXT_SCHEMES.items():
            if not cls.needs_truth and name not in self.MADE_OF_OTHERS:
                cfg = load_config("", ["MODEL.CONTEXT.NAME", name, *map(str, options)])
                self.schemes[name] = build_context(cfg, 16)
        for parameter in self.parameters():  # every scheme has an effect
            nn.init.normal_(parameter, std=0.2)

    def forward(self, x: Tensor, m: Tensor) -> list[Tensor]:
        return [scheme(x.clone(), m.clone()) for scheme in self.schemes.values()]


@pytest.mark.slow
def test_every_scheme(tmp_path):
    torch.manual_seed(0)
    schemes, dynamic = Schemes().eval(), torch.export.Dim.DYNAMIC
    sides = {2: dynamic, 3: dynamic}
    options = {"strict": False, "prefer_deferred_runtime_asserts_over_guards": True}
    table = {"custom_translation_table": TRANSLATIONS, "verbose": False}
    with torch.no_grad():
        inputs = torch.randn(1, 16, 9, 13), torch.randn(1, 5, 9, 13)
        program = torch.export.export(schemes, inputs, dynamic_shapes=(sides, sides), **options)
        written = torch.onnx.export(program, input_names=["x", "m"], **table)
        written.save(tmp_path / "schemes.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "schemes.onnx")
        for h, w in ((9, 13), (16, 8), (7, 21)):
            x, m = torch.randn(1, 16, h, w), torch.randn(1, 5, h, w)
            found = session.run(None, {"x": x.numpy(), "m": m.numpy()})
            for name, a, b in zip(schemes.schemes, found, schemes(x, m), strict=True):
                assert b.std() > 1e-3, f"{name} gives a constant"
                np.testing.assert_allclose(a, b.numpy(), atol=1e-4, err_msg=f"{name} at {h}x{w}")


COUNT = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "3", "MODEL.DEVICE", "cpu", "DATASETS.TEST", "()"]
AGNOSTIC = ["MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG", "True"]
GREY = ["INPUT.CHANNELS", "1", "MODEL.PIXEL_MEAN", "[100.0]", "MODEL.PIXEL_STD", "[50.0]"]
SWIN = ["MODEL.BACKBONE.NAME", "build_timm_backbone"]
SWIN += ["MODEL.TIMM.NAME", "swin_tiny_patch4_window7_224"]
SWIN += ["MODEL.SEM_SEG_HEAD.IN_FEATURES", "['layers.0']"]
SWIN += ["MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", "['layers.0']"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("semantic", ["MODEL.CONTEXT.NAME", "GT-OCR"], "GroundTruthOCR.* needs the ground truth"),
        ("semantic", SWIN, "Swin networks cannot be exported"),
        ("semantic", ["TEST.FLIP", "True"], "TEST.FLIP or TEST.SLIDING_WINDOW is set"),
        ("semantic", ["TEST.SCALES", "[0.5, 1.0]"], "Set TEST.SCALES .1.0."),
        ("semantic", GREY, "INPUT.CHANNELS is 1; only models for RGB or"),
        ("panoptic", ["MODEL.ROI_HEADS.NAME", "CascadeROIHeads"], "Cascade.*; only StandardROIH"),
        ("panoptic", ["MODEL.MASK_ON", "False"], "MODEL.MASK_ON is False"),
        ("panoptic", ["TEST.AUG.ENABLED", "True"], "TEST.AUG.ENABLED is True"),
    ],
)
def test_models_that_cannot_be_exported(small_cfg, kind, options, message):
    if kind == "semantic":
        cfg = load_config(str(SEMANTIC_CONFIG), [*SEMANTIC, *COUNT, *options])
    else:
        cfg = small_cfg("ocr", *PANOPTIC, *AGNOSTIC, *options)
    with pytest.raises(ValueError, match=message):
        build_graph(build_model(cfg), cfg.INPUT.FORMAT)


@pytest.mark.parametrize("key", ["SEGFIX.WEIGHTS x.pth", "SLIDING_WINDOW.SIZE [64,64]"])
def test_settings_that_a_single_network_cannot_have(small_cfg, tmp_path, key):
    cfg = small_cfg("ocr", *f"TEST.{key}".split())
    with pytest.raises(ValueError, match="TEST.SEGFIX.WEIGHTS or TEST.SLIDING_WINDOW.SIZE is set"):
        export_model(cfg, Start(""), tmp_path / "model.onnx")


@pytest.mark.slow
def test_same_padding_is_constant_in_the_graph(small_cfg):
    """Otherwise tracing an EfficientNet takes minutes."""
    names = "MODEL.TIMM.NAME", "tf_efficientnet_lite0", "MODEL.TIMM.NORM", "BN"
    cfg = small_cfg("ocr", "MODEL.BACKBONE.NAME", "build_timm_fpn_backbone", *names)
    model = build_model(cfg).eval()
    graph = build_graph(model, cfg.INPUT.FORMAT)
    assert [m for m in model.modules() if type(m) is Conv2dSame], "the model stays as it was"
    convolutions = [m for m in graph.modules() if type(m) is Conv2dSame]
    assert convolutions == [m.conv for m in graph.modules() if type(m) is EvenConv2dSame]
    shared, own = (
        {id(p) for p in network.backbone.parameters()} for network in (graph.model, model)
    )
    assert shared == own
    image = torch.rand(1, 3, 96, 160)
    with torch.no_grad():
        maps, expected = graph.model.backbone(image), model.backbone(image)
    assert all(torch.equal(maps[name], expected[name]) for name in expected)


def test_another_architecture_cannot_be_exported():
    """A subclass could compute something else from the same layers."""
    subclass = type("Offsets", (OCRSemanticSegmentor,), {})
    with pytest.raises(ValueError, match="META_ARCHITECTURE is Offsets; only PanopticSeg"):
        build_graph(subclass.__new__(subclass), "RGB")


def test_refusals_name_the_precision_and_pytorchs_reason(tmp_path):
    with pytest.raises(ValueError, match="'float16'.* float32 .*int8"):
        cli_export.export("run", output="a.onnx", precision="float16")
    with pytest.raises(ValueError, match="--data is only used for int8"):
        cli_export.export("run", output="a.onnx", data="photos")
    no_module, resize = SimpleNamespace(stride=32), T.ResizeShortestEdge(64, 128)
    with pytest.raises(ValueError, match="cannot export this network: .*Module"):
        onnx_file.write_onnx(no_module, resize, {}, tmp_path / "model.onnx")


def test_missing_packages_of_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.delitem(sys.modules, "ocr_panoptic.workbench.exporting")
    with pytest.raises(ModuleNotFoundError, match="onnxscript is not installed.*Run: pip install"):
        importlib.import_module("ocr_panoptic.workbench.exporting")


def test_segments_are_compared_without_their_numbers():
    ids = np.zeros((4, 10), np.int32)
    ids[:, :3], ids[:, 3:7] = 1, 2
    things = [{"id": i, "isthing": True, "category_id": 5} for i in (1, 2)]
    swapped = np.choose(ids, [0, 2, 1])
    assert match_segments((ids, things), (swapped, things))[0] == 1
    other = [things[0], {**things[1], "category_id": 4}]
    assert match_segments((ids, things), (ids, other)) == (0.6, [(things[0], other[0])])
    joined = np.minimum(ids, 1)
    assert match_segments((ids, things), (joined, things[:1]))[0] == 0.7


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({}, ""),
        ({"scores": float("nan")}, "scores nan (at most 0.0001)"),
        ({"equal segments": 0.9998}, "equal segments 0.9998 (at least 0.9999)"),
        # Logits of 20 may differ by 2e-3, and then a confidence by 1e-3.
        ({"confidences": 9e-4, "largest logit": 20.0}, ""),
        ({"confidences": 2e-3, "largest logit": 20.0}, "confidences 0.002 (at most 0.0"),
        ({"confidences": 2e-4, "largest logit": 1.0}, "confidences 0.0002 (at most 0.0"),
        ({"confidences": 2e-4, "rounding": 1e-4}, ""),
    ],
)
def test_limits_of_parity(row, fault):
    good = {"equal labels": 1.0, "equal segments": 1.0, "logits": 0.0, "confidences": 0.0}
    found = parity_faults(good | {"scores": 0.0} | row)
    assert found[0].startswith(fault) if fault else not found


class Cancelling(nn.Module):
    """A model of two classes, whose logits lose 12 of their 24 bits in float32."""

    device = torch.device("cpu")

    def forward(self, inputs: list[dict]) -> list[dict]:
        labels = self.logits(inputs)[0].argmax(dim=0)
        return [{"labels": labels, "confidence": torch.ones(labels.shape)}]

    def logits(self, inputs: list[dict]) -> Tensor:
        image = inputs[0]["image"].to(next(iter(self.buffers())).dtype)
        red = (image[0] / 255 + self.large) - self.large
        return torch.stack([red, 0.5 - red])[None]


@pytest.mark.parametrize(("error", "equal"), [(0.0, True), (1e-3, False)])
def test_differences_may_be_as_large_as_the_models_rounding(error, equal, monkeypatch):
    model = Cancelling()
    model.register_buffer("large", torch.tensor(3000.3))

    def exported(image: np.ndarray) -> dict:
        red = image[:, :, 0] / 255 + error
        # The model's labels are used, so that only logits differ.
        found = model([{"image": torch.as_tensor(image.transpose(2, 0, 1).copy())}])[0]
        labels, confidences = (values.numpy() for values in found.values())
        logits = np.stack([red, 0.5 - red])
        return {"logits": logits, "labels": labels, "confidences": confidences}

    monkeypatch.setattr(parity, "semantic_logits", lambda m, x: m.logits(x))
    same = T.ResizeShortestEdge(0)
    used = deploy(model, optimize=False)
    (row,) = check_parity(used, exported, "RGB", same, [(40, 60)])
    assert 1e-4 < row["rounding"] < 3e-4  # half the distance of two float32 near 3000
    assert (not parity_faults(row)) == equal
