"""Small models with every scheme, from export to the runner's files; and refused models."""

import importlib
import json
import multiprocessing
import resource
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from detectron2.data import transforms as T
from detectron2.modeling import build_model
from PIL import Image
from timm.layers import Conv2dSame
from torch import Tensor, nn

from ocr_panoptic import cli, modeling
from ocr_panoptic.cli import export as cli_export
from ocr_panoptic.engine import load_config
from ocr_panoptic.modeling import OCRSemanticSegmentor, deploy
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES, build_context
from ocr_panoptic.modeling.timm_parts import EvenConv2dSame
from ocr_panoptic.workbench.exporting import onnx_file, run_onnx
from ocr_panoptic.workbench.exporting.graphs import build_graph
from ocr_panoptic.workbench.exporting.operators import TRANSLATIONS
from ocr_panoptic.workbench.exporting.parity import check_parity, match_segments, parity_faults
from support.exported_models import PANOPTIC, SEMANTIC, build, export
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG

SWIN = [
    *("MODEL.BACKBONE.NAME", "build_timm_backbone"),
    *("MODEL.TIMM.NAME", "swin_tiny_patch4_window7_224"),
    *("MODEL.SEM_SEG_HEAD.IN_FEATURES", "['layers.0']"),
    *("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", "['layers.0']"),
]


def assert_as_predict_writes(config: Path, options: list[str], folder: Path) -> None:
    """Compare both programs on images with equal names, and one in a subfolder."""
    first, second, *_ = sorted((folder / "images").iterdir())
    (folder / "images/below").mkdir()
    Image.open(first).save(folder / "images" / f"{first.stem}.png")
    second.rename(folder / "images/below" / second.name)
    arguments = folder / "model.onnx", "--input", folder / "images", "--output", folder / "onnx"
    assert run_onnx.main([str(a) for a in arguments]) == 0
    files = ["--config-file", config, "--weights", folder / "model.pth"]
    files += ["--input", folder / "images", "--output", folder / "torch"]
    assert cli.call("predict", [*map(str, files), *options]) == 0
    for name in ("panoptic.json", "labels.json"):
        contents = [folder / program / name for program in ("onnx", "torch")]
        if contents[1].exists():
            found, expected = (json.loads(content.read_text()) for content in contents)
            assert_json_close(found, expected)
    pngs = sorted(path.relative_to(folder / "torch") for path in (folder / "torch").rglob("*.png"))
    assert pngs == sorted(p.relative_to(folder / "onnx") for p in (folder / "onnx").rglob("*.png"))
    for png in pngs:
        both = (
            np.asarray(Image.open(folder / name / png)).astype(int) for name in ("onnx", "torch")
        )
        assert np.abs(np.subtract(*both)).max() <= (png.parts[0] == "confidence"), png


def assert_json_close(found: object, expected: object) -> None:
    """Check that JSON values are equal, numbers up to 2e-4."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(map(found.get, expected)), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            assert_json_close(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=2e-4)
    else:
        assert found == expected


@pytest.mark.slow
def test_panoptic_model(tiny_data, tmp_path, capsys):
    shutil.copytree(tiny_data / "tiny/raw/val/images", tmp_path / "images")
    image = sorted((tmp_path / "images").iterdir())[0]
    # test_semantic_model is not residual
    options = [*PANOPTIC, "MODEL.OCR.RESIDUAL", "True", "MODEL.OCR.DOWNSAMPLE", "2"]
    model, _ = build(OCR_CONFIG, options, image)
    path = export(OCR_CONFIG, options, tmp_path, model)
    assert "| 97x259  | 64x171" in capsys.readouterr().out
    (tmp_path / "broken.png").write_text("no image")
    folder = tmp_path / "second"
    again = [path, "--input", tmp_path / "broken.png", image, "--output", folder, "--overlays"]
    assert run_onnx.main([str(a) for a in again]) == 1
    said = capsys.readouterr()
    assert "broken.png: cannot be read as an image" in said.err and said.err.count("\n") == 1
    assert "1 of 2 images predicted" in said.out
    for name in ("panoptic", "overlays"):
        assert [file.stem for file in (folder / name / "images").iterdir()] == [image.stem]
    kinds = {s["isthing"] for s in run_onnx.Model(path)(run_onnx.read_image(image))["segments"]}
    assert kinds == {True, False}, "the test needs things and stuff"
    assert run_onnx.main([str(a) for a in again]) == 1
    assert "second already exists: name a new or an empty folder" in capsys.readouterr().err
    assert_as_predict_writes(OCR_CONFIG, options, tmp_path)


@pytest.mark.slow
def test_semantic_model(tiny_data, tmp_path):
    shutil.copytree(tiny_data / "tiny/raw/val/images", tmp_path / "images")
    image = sorted((tmp_path / "images").iterdir())[0]
    model, _ = build(SEMANTIC_CONFIG, SEMANTIC, image)
    exported = run_onnx.Model(export(SEMANTIC_CONFIG, SEMANTIC, tmp_path, model))
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
    with torch.no_grad():
        program = torch.export.export(
            schemes,
            (torch.randn(1, 16, 9, 13), torch.randn(1, 5, 9, 13)),
            dynamic_shapes=(sides, sides),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
        torch.onnx.export(
            program, input_names=["x", "m"], custom_translation_table=TRANSLATIONS, verbose=False
        ).save(tmp_path / "schemes.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "schemes.onnx")
        for h, w in ((9, 13), (16, 8), (7, 21)):
            x, m = torch.randn(1, 16, h, w), torch.randn(1, 5, h, w)
            found = session.run(None, {"x": x.numpy(), "m": m.numpy()})
            for name, a, b in zip(schemes.schemes, found, schemes(x, m), strict=True):
                assert b.std() > 1e-3, f"{name} gives a constant"
                np.testing.assert_allclose(a, b.numpy(), atol=1e-4, err_msg=f"{name} at {h}x{w}")


COUNT = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "3", "MODEL.DEVICE", "cpu", "DATASETS.TEST", "()"]
AGNOSTIC = ["MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG", "True"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("semantic", ["MODEL.CONTEXT.NAME", "GT-OCR"], "GroundTruthOCR.* needs the ground truth"),
        ("semantic", SWIN, "A Swin cannot be exported"),
        ("semantic", ["TEST.FLIP", "True"], "TEST.FLIP or TEST.SLIDING_WINDOW is set"),
        ("semantic", ["TEST.SCALES", "[0.5, 1.0]"], "set TEST.SCALES .1.0."),
        ("semantic", ["INPUT.FORMAT", "YUV-BT.601"], "INPUT.FORMAT is YUV-BT.601 .* RGB or"),
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
        build_graph(modeling.build_model(cfg), cfg.INPUT.FORMAT)


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
    assert {id(p) for p in graph.parameters()} == {id(p) for p in model.parameters()}
    image = torch.rand(1, 3, 96, 160)
    with torch.no_grad():
        maps, expected = graph.model.backbone(image), model.backbone(image)
    assert all(torch.equal(maps[name], expected[name]) for name in expected)


def test_another_architecture_cannot_be_exported():
    class Offsets(OCRSemanticSegmentor):
        """A subclass, which could compute something else from the same layers."""

    model = Offsets.__new__(Offsets)
    with pytest.raises(ValueError, match="META_ARCHITECTURE is Offsets; PanopticFPN and OCRSem"):
        build_graph(model, "RGB")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"output": "folder"}, "output folder: name a file that ends in .onnx"),
        ({"output": "a.onnx", "precision": "float16"}, "'float16'.* float32 .*int8"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        cli_export.export("run", **arguments)


@pytest.mark.parametrize("copies", [1.2, 2.2, 6])
def test_too_little_memory_for_the_file_is_an_error(tmp_path, copies):
    # Without the check, protobuf ends the process by SIGSEGV with room for 1 to 2 copies of the
    # weights, and says that it cannot serialize with room for 2.2.
    weight = ir.Value(name="w", const_value=ir.tensor(np.zeros(2**25, np.float32), name="w"))
    graph = ir.Graph([], [], nodes=[], initializers=[weight], opset_imports={"": 18}, name="g")
    model, size = ir.Model(graph, ir_version=10), weight.const_value.nbytes

    def save_with_little_memory() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + int(copies * size),) * 2)
        with pytest.raises(MemoryError) if copies < 3 else nullcontext():
            onnx_file.save(model, tmp_path / "model.onnx")

    process = multiprocessing.get_context("fork").Process(target=save_with_little_memory)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(
    "reason, error", [("can't allocate memory", RuntimeError), ("no such operator", ValueError)]
)
def test_too_little_memory_is_not_the_networks_fault(tmp_path, monkeypatch, reason, error):
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(torch.export, "export", fail)
    resize = T.ResizeShortestEdge(64, 128)
    with pytest.raises(error, match=reason):
        onnx_file.write_onnx(SimpleNamespace(stride=32), resize, {}, tmp_path / "model.onnx")


def test_missing_packages_of_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.delitem(sys.modules, "ocr_panoptic.workbench.exporting")
    with pytest.raises(ModuleNotFoundError, match="onnxscript is not installed.*: pip install"):
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
    ("precision", "row", "fault"),
    [
        ("float32", {}, ""),
        ("float32", {"scores": float("nan")}, "scores nan (at most 0.0001)"),
        ("float32", {"segments equal": 0.9998}, "segments equal 0.9998 (at least 0.9999)"),
        # Logits of 20 may differ by 2e-3, and then a confidence by 1e-3.
        ("float32", {"confidences": 9e-4, "largest logit": 20.0}, ""),
        ("float32", {"confidences": 2e-3, "largest logit": 20.0}, "confidences 0.002 (at most 0.0"),
        ("float32", {"confidences": 2e-4, "largest logit": 1.0}, "confidences 0.0002 (at most 0.0"),
        ("float32", {"confidences": 2e-4, "rounding": 1e-4}, ""),
        ("int8", {"labels equal": 0.95, "logits": 0.1, "confidences": 0.3}, ""),
        ("int8", {"labels equal": 0.85}, "labels equal 0.85 (at least 0.9)"),
        ("int8", {"confidences": float("nan")}, "confidences nan"),
    ],
)
def test_limits_of_parity(precision, row, fault):
    good = {"labels equal": 1.0, "segments equal": 1.0, "logits": 0.0, "confidences": 0.0}
    found = parity_faults(good | {"scores": 0.0} | row, precision)
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
def test_differences_may_be_as_large_as_the_models_rounding(error, equal):
    model = Cancelling()
    model.register_buffer("large", torch.tensor(3000.3))

    class Exported:
        def __call__(self, image: np.ndarray) -> dict:
            red = image[:, :, 0] / 255 + error
            logits = np.stack([red, 0.5 - red])
            # The model's labels are used, so that only logits differ.
            labels = model([{"image": torch.as_tensor(image.transpose(2, 0, 1).copy())}])[0]
            return {
                "logits": logits,
                "labels": labels["labels"].numpy(),
                "confidences": np.ones(image.shape[:2]),
            }

    same = T.ResizeShortestEdge(0)
    used = deploy(model, optimize=False)
    (row,) = check_parity(used, Exported(), lambda m, x: m.logits(x), "RGB", same, [(40, 60)])
    assert 1e-4 < row["rounding"] < 3e-4  # half the distance of two float32 near 3000
    assert (not parity_faults(row)) == equal
