"""Converted weights give the logits of the published networks, and nothing is lost in silence."""

import functools
import hashlib
import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from safetensors.torch import save_file
from torch import Tensor, nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings
from ocr_panoptic.checkpoint.convert import Conversion, convert_weights
from ocr_panoptic.checkpoint.settings import differing_settings
from ocr_panoptic.engine import build_trained_model
from ocr_panoptic.engine.single_image import predict
from support import published_networks as published
from support.loaded_configs import CONFIGS
from support.published_files import FILES
from support.scripts import load_script

pytestmark = pytest.mark.slow

tool = load_script("tools/convert_checkpoint.py")

W18 = ("MODEL.TIMM.NAME", "hrnet_w18", "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "270")
R50 = ("MODEL.RESNETS.DEPTH", "50")
PLAIN = ("MODEL.OCR.NEGATIVE_SLOPE", "0.0")
NARROW = (
    *("MODEL.OCR.CHANNELS", "256", "MODEL.OCR.KEY_CHANNELS", "128"),
    *("MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "256"),
)

# --from, config, overrides, network, its weights, in front of the names
CASES = {
    "hrnet W48": ("hrnet", "hrnet_cityscapes", (), published.hrnet_ocr, {}, ""),
    "hrnet W18, FullModel": (
        *("hrnet", "hrnet_cityscapes", W18),
        lambda w, x: published.hrnet_ocr(w, x, 18),
        {},
        "model.",
    ),
    "hrnet W18, torch04": (
        *("hrnet", "hrnet_lip", W18),
        lambda w, x: published.hrnet_ocr(w, x, 18, 20),
        {"inplace_abn": True},
        "module.",
    ),
    "openseg R-50": (
        *("openseg", "openseg_R_101_cityscapes", R50),
        lambda w, x: published.openseg_resnet(w, x, 50),
        {"inplace_abn": True},
        "module.",
    ),
    "openseg R-50, SyncBN": (
        *("openseg", "openseg_R_101_cityscapes", (*R50, *PLAIN)),
        lambda w, x: published.openseg_resnet(w, x, 50),
        {"nested": True},
        "module.",
    ),
    "openseg R-50, ASP-OCR": (
        *("openseg", "openseg_R_101_cityscapes", (*R50, "MODEL.CONTEXT.NAME", "ASP-OCR")),
        lambda w, x: published.openseg_resnet(w, x, 50, asp=True),
        {"inplace_abn": True},
        "module.",
    ),
    "openseg W18, 256 channels": (
        *("openseg", "openseg_cityscapes", ("MODEL.TIMM.NAME", "hrnet_w18", *NARROW)),
        lambda w, x: published.openseg_hrnet(w, x, 18, narrow=True),
        {"inplace_abn": True},
        "module.",
    ),
    "openseg W18, ADE20K": (
        *("openseg", "openseg_ade20k", W18),
        lambda w, x: published.openseg_hrnet(w, x, 18, 150),
        {"inplace_abn": True},
        "module.",
    ),
    "openseg W18, SyncBN": (
        *("openseg", "openseg_cityscapes", (*W18, *PLAIN)),
        lambda w, x: published.openseg_hrnet(w, x, 18),
        {"nested": True},
        "",
    ),
    "mmseg HR18": ("mmseg", "mmseg_HR18_cityscapes", (), published.mmseg_hrnet, {}, ""),
    "mmseg HR18s": (
        *("mmseg", "mmseg_HR18s_ade20k", ()),
        lambda w, x: published.mmseg_hrnet(w, x, 18, 150, small=True),
        {},
        "",
    ),
    "mmseg R-101": ("mmseg", "mmseg_R_101_cityscapes", (), published.mmseg_resnet, {}, ""),
    "mmseg R-50": (
        *("mmseg", "mmseg_R_101_cityscapes", R50, lambda w, x: published.mmseg_resnet(w, x, 50)),
        {},
        "",
    ),
}


def load(name: str, *opts: str) -> CfgNode:
    """The config that a file's weights need, with overrides."""
    cfg = FILES[name].load("MODEL.DEVICE", "cpu", *opts)
    for node in (cfg.MODEL.OCR, cfg.MODEL.RESNETS, cfg.MODEL.TIMM):
        node.NORM = "BN"
    return cfg


def image(height: int = 65, width: int = 97) -> Tensor:
    return 255 * torch.rand(3, height, width, generator=torch.Generator().manual_seed(1))


def network_input(cfg: CfgNode, x: Tensor) -> Tensor:
    """Normalised by hand, [1, 3, H, W]; openseg.pytorch pads to multiples of 8 on ADE20K."""
    mean, std = torch.tensor(cfg.MODEL.PIXEL_MEAN), torch.tensor(cfg.MODEL.PIXEL_STD)
    bottom, right = (-side % cfg.MODEL.PAD_TO_MULTIPLE for side in x.shape[1:])
    x = (x - mean[:, None, None]) / std[:, None, None]
    return F.pad(x, (0, right, 0, bottom))[None]


@pytest.fixture(autouse=True)
def uninitialized(monkeypatch):
    """All weights of the models here come from files: random ones in front of them take time."""
    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(Tensor, name, lambda self, *_, **__: self)


@functools.lru_cache(maxsize=1)
def make_once(case: str) -> tuple[CfgNode, dict[str, Tensor], Tensor, tuple[Tensor, Tensor]]:
    _, config, opts, network, options, _ = CASES[case]
    cfg = load(config, *opts)
    x, weights = image(), published.Weights(**options)
    with torch.no_grad():
        logits = network(weights, network_input(cfg, x))
    return cfg, weights.tensors, x, logits


def make(case: str) -> tuple[CfgNode, dict[str, Tensor], Tensor, tuple[Tensor, Tensor]]:
    """Config, published state dict, image, and (coarse, final) logits of the published network."""
    cfg, *others = make_once(case)
    return cfg.clone(), *others


def write(path: Path, tensors: dict[str, Tensor], prefix: str, wrap: bool = True) -> Path:
    tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    torch.save({"state_dict": tensors, "meta": {"epoch": 3}} if wrap else tensors, path)
    return path


def convert(
    source: str, file: Path, output: Path, config: str, *opts: str, flags: tuple[str, ...] = ()
) -> None:
    arguments = ["--from", source, str(file), str(output), *flags]
    arguments += ["--config-file", str(CONFIGS / f"{FILES[config].recipe}.yaml")]
    tool.main([*arguments, "--opts", *FILES[config].opts, *opts])


# One of the largest networks of each kind; the others are as good in a small size. The random
# weights of a plain R-50 predict one label.
@pytest.mark.parametrize("case", [c for c in CASES if c not in ("openseg R-50", "mmseg R-50")])
def test_logits_are_those_of_the_published_network(case, tmp_path, capsys):
    """Through the files: published file -> tool -> MODEL.WEIGHTS -> logits, on 65 x 97 pixels."""
    source, config, opts, _, options, prefix = CASES[case]
    cfg, tensors, x, expected = make(case)
    cfg.TEST.OPTIMIZED = False  # which rounds otherwise, see modeling/test_deploy.py
    file = write(tmp_path / "published.pth", tensors, prefix, wrap=prefix != "model.")
    suffix = ".safetensors" if source == "mmseg" else ".pth"
    cfg.MODEL.WEIGHTS = str(tmp_path / f"converted{suffix}")
    convert(source, file, cfg.MODEL.WEIGHTS, config)
    weights = ("MODEL.WEIGHTS", cfg.MODEL.WEIGHTS, "OUTPUT_DIR", "./output/converted")
    written = (tmp_path / "converted.yaml").read_text()
    assert written == FILES[config].load(*opts, *weights).dump()
    model = build_trained_model(cfg)
    with torch.no_grad():
        found = model.network.layers([{"image": x}])
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.std() > 0.3  # not a constant map
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    # To labels as the published codes: authors' corners aligned; padding, on ADE20K, is cut off.
    padded = network_input(cfg, x).shape[2:]
    scores = F.interpolate(found[1], padded, mode="bilinear", align_corners=source != "mmseg")
    model.network.inference.flip = False  # LIP is tested with mirrored images besides
    labels = model([{"image": x}])[0]["labels"]
    assert torch.equal(labels, scores[0, :, :65, :97].argmax(0)) and len(labels.unique()) > 1
    printed = capsys.readouterr().out
    assert ("|weight| + 1e-05" in printed) == options.get("inplace_abn", False)
    biases = sum(name.endswith(".bias") and name[:-4] + "running_mean" not in tensors
                 for name in tensors) - 2  # fmt: skip
    assert f"{biases} biases folded" in printed


@pytest.mark.parametrize("size", [(96, 160), (101, 131), (133, 197)])
@pytest.mark.parametrize("case", ["hrnet W18, FullModel", "openseg W18, SyncBN", "mmseg HR18s"])
@torch.no_grad()
def test_images_of_any_size(case, size):
    """Converted logits equal the published network's. In float64, as norms of random weights fit
    one size alone; what is left is the rounding of the biases that were folded."""
    source, _, _, network, options, _ = CASES[case]
    cfg, tensors, _, _ = make(case)
    x, weights = network_input(cfg, image(*size)), published.Weights(**options)
    weights.tensors = {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}
    model = build_model(cfg).eval()
    shapes = {k: tuple(t.shape) for k, t in model.state_dict().items()}
    model.load_state_dict(convert_weights(tensors, source, shapes).weights)
    expected = network(weights, x.double())[1]
    most = expected.abs().max().item()
    torch.testing.assert_close(
        model.double().logits(x.double()), expected, rtol=0, atol=5e-6 * most
    )


# What the logits of one network owe to a key that shapes do not show.
DETAILS = [
    ("hrnet W18, FullModel", "MODEL.ALIGN_CORNERS", False),
    ("hrnet W18, FullModel", "MODEL.PAD_TO_MULTIPLE", 0),
    ("hrnet W18, FullModel", "MODEL.OCR.SCALE_RELATION", False),
    ("hrnet W18, FullModel", "MODEL.PIXEL_STD", [1.0, 1.0, 1.0]),
    ("openseg R-50", "MODEL.OCR.NEGATIVE_SLOPE", 0.0),
    ("openseg R-50", "MODEL.RESNETS.CONTRACT_DILATION", False),
    ("openseg R-50", "MODEL.RESNETS.RES5_MULTI_GRID", [1, 2, 4]),
    ("openseg R-50, ASP-OCR", "MODEL.CONTEXT.DILATIONS", [4, 8, 12]),
    ("mmseg R-50", "MODEL.RESNETS.STRIDE_IN_1X1", True),
    ("mmseg R-50", "MODEL.BACKBONE.NAME", "build_resnet_deeplab_backbone"),
    ("mmseg HR18", "MODEL.ALIGN_CORNERS", True),
    ("mmseg HR18", "MODEL.TIMM.ENLARGE_TWICE", False),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Callable[[str], tuple[Path, Path]]:
    """Factory: the published file of a case, and the one that the tool makes of it."""

    @functools.lru_cache(maxsize=1)
    def make_files(case: str) -> tuple[Path, Path]:
        source, config, _, _, _, prefix = CASES[case]
        folder = tmp_path_factory.mktemp("files")
        file = write(folder / "published.pth", make(case)[1], prefix)
        convert(source, file, folder / "converted.pth", config)
        return file, folder / "converted.pth"

    return make_files


@pytest.mark.parametrize("case, key, value", DETAILS)
def test_every_setting_matters_and_is_asked_for(case, key, value, files, tmp_path):
    """Logits differ with another value of the key, so the tool and an evaluation refuse it."""
    source, config, _, _, _, _ = CASES[case]
    cfg, _, x, (_, expected) = make(case)
    file, output = files(case)
    refused = tmp_path / "converted.pth"
    with pytest.raises(ValueError, match=re.escape(f"{key} is {value}, expected")):
        convert(source, file, refused, config, key, str(value))
    assert not refused.exists()
    cfg.MODEL.WEIGHTS = str(output)
    cfg.merge_from_list([key, value])
    with pytest.raises(ValueError, match=f"(?s)published.pth.*{key} is .*expected"):
        build_trained_model(cfg)
    model = build_model(cfg).eval()
    model.load_state_dict(torch.load(output, weights_only=True)["model"])
    with torch.no_grad():
        found = model.layers([{"image": x}])[1][..., : expected.shape[2], : expected.shape[3]]
    assert (found - expected).abs().max() > 1e-3


def test_ceil_mode_is_asked_for_and_seen_where_sides_are_even(tmp_path):
    """On 64 x 96 pixels; 65 x 97 have the same features with and without."""
    w, cfg = published.Weights(inplace_abn=True), load("openseg_R_101_cityscapes", *R50)
    x = image(64, 96)
    with torch.no_grad():
        expected = published.openseg_resnet(w, network_input(cfg, x), 50)[1]
    assert expected.shape[2:] == (9, 13)
    file = write(tmp_path / "published.pth", w.tensors, "module.")
    output, config = tmp_path / "converted.pth", "openseg_R_101_cityscapes"
    with pytest.raises(ValueError, match="STEM_CEIL_MODE is False, expected True"):
        convert("openseg", file, output, config, "MODEL.RESNETS.STEM_CEIL_MODE", "False")
    convert("openseg", file, output, config)
    cfg.MODEL.WEIGHTS = str(output)
    with torch.no_grad():
        found = build_trained_model(cfg).network.layers([{"image": x}])[1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


# ------------------------------------------------------------------ what does not fit, and records


@pytest.fixture(scope="module")
def w18() -> tuple[dict[str, Tensor], dict[str, tuple]]:
    """A published state dict, and the shapes of the model that it fits."""
    cfg, tensors, _, _ = make("hrnet W18, FullModel")
    return tensors, {k: tuple(v.shape) for k, v in build_model(cfg).state_dict().items()}


def without(name: str) -> Callable:
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    "name, change, message",
    [
        (
            "cls_head.bias",
            "missing",
            "sem_seg_head.refined_predictor.bias: in the model",
        ),
        (
            "stage4.2.fuse_layers.3.2.0.0.weight",
            "missing",
            "backbone.body.stage4.2.fuse_layers.3.2.0.0.weight: in the model",
        ),
        ("ocr_gather_head.weight", "extra", "ocr_gather_head.weight: in the file, but not in the"),
        ("stage4.3.branches.0.0.conv1.weight", "extra", "stage4.3.*which the model does not have"),
        ("conv3x3_ocr.1.0.running_var", "extra", "conv3x3_ocr.1.*a second tensor for .*bottlenec"),
        (
            "model.cls_head.weight",
            "extra",
            "model.cls_head.weight: a second tensor for .*predict",
        ),
        ("conv3x3_ocr.0.bias", "missing", "bottleneck.bias: the published network has it"),
        (
            "ocr_distri_head.object_context_block.f_up.0.bias",
            "extra",
            "f_up.0.bias: would be sem_seg_head.context.rho.bias, which the model does not have",
        ),
        ("cls_head.bias", "text", "cls_head.bias: a str in the file, not a tensor"),
        (
            "cls_head.weight",
            "shape",
            r"cls_head.weight: \(7, 1, 1, 1\) in the file, \(19, 512, 1, 1\) for",
        ),
        (
            "conv3x3_ocr.0.bias",
            "shape",
            r"conv3x3_ocr.0.bias: \(7, 1, 1, 1\) in the file, \(512",
        ),
    ],
)
def test_what_does_not_fit(w18, name, change, message):
    tensors, shapes = dict(w18[0]), w18[1]
    if change == "missing":
        del tensors[name]
    elif change == "text":
        tensors[name] = "0.1"
    else:
        tensors[name] = torch.zeros(7, 1, 1, 1)
    with pytest.raises(
        ValueError, match=f"(?s)weights of hrnet .* [12] tensors do not fit.*{message}"
    ):
        convert_weights(tensors, "hrnet", shapes)


@pytest.mark.parametrize("case", ["openseg R-50", "openseg W18, SyncBN", "mmseg HR18s"])
def test_a_missing_or_surplus_tensor_of_every_kind(case):
    """One tensor of each kind is left out, or added: all are noticed."""
    cfg, tensors, _, _ = make(case)
    source = CASES[case][0]
    shapes = {k: tuple(v.shape) for k, v in build_model(cfg).state_dict().items()}
    blocks = ("object_context_block", "conv_3x3", "conv3x3", "head", "stage2.0", "layer3.0")
    names = [n for n in tensors if any(b in n for b in blocks) and "num_batches" not in n]
    assert len(names) > 70
    for name in names[::3]:
        fewer = {k: v for k, v in tensors.items() if k != name}
        with pytest.raises(ValueError, match="1 tensors do not fit"):
            convert_weights(fewer, source, shapes)
    for name in ("backbone.fc.weight", "decode_head.2.conv_seg.weight", "aux_head.1.0.0.weight"):
        with pytest.raises(ValueError, match=f"{name}: in the file, but not in the published"):
            convert_weights({**tensors, name: torch.zeros(3)}, source, shapes)
    # A bias where the published network has none.
    conv = "decode_head.1.bottleneck.conv" if source == "mmseg" else "backbone.layer1.0.conv1"
    with pytest.raises(ValueError, match=f"{conv}.bias: would be .*which the model does not have"):
        convert_weights({**tensors, f"{conv}.bias": torch.zeros(64)}, source, shapes)


def test_another_number_of_classes(w18, tmp_path):
    file = write(tmp_path / "published.pth", w18[0], "")
    output = tmp_path / "out.pth"
    with pytest.raises(ValueError, match="4 tensors do not fit") as error:
        convert("hrnet", file, output, "hrnet_lip")
    assert "cls_head.weight: (19, 512, 1, 1) in the file, (20, 512, 1, 1)" in str(error.value)
    assert not output.exists()


def test_a_recipe_of_another_backbone(w18, tmp_path):
    file, output = write(tmp_path / "published.pth", w18[0], ""), tmp_path / "out.pth"
    with pytest.raises(ValueError, match="not the weights of hrnet that the config describes"):
        convert("hrnet", file, output, "mmseg_R_101_cityscapes")
    assert not any(tmp_path.glob("out*"))


def test_every_tensor_is_accounted_for(w18):
    tensors, shapes = w18
    tensors = {**tensors, "loss.criterion.weight": torch.ones(19)}
    found = convert_weights(tensors, "hrnet", shapes)
    assert set(found.weights) == set(shapes)
    assert {*found.renamed, *found.folded, *found.dropped} == set(tensors)
    assert set(found.dropped) == {"loss.criterion.weight"} and not found.filled
    assert "loss.criterion.weight" in found.report() and "class weights" in found.report()
    assert sorted(found.folded) == ["aux_head.0.bias", "conv3x3_ocr.0.bias"]
    assert "aux_head.0.bias" in found.report()
    assert not found.inplace_abn


def test_counters_that_are_missing_are_named(w18):
    tensors, shapes = w18
    tensors = {k: v for k, v in tensors.items() if not k.endswith("num_batches_tracked")}
    found = convert_weights(tensors, "hrnet", shapes, inplace_abn=False)
    assert {name.rpartition(".")[2] for name in found.filled} == {"num_batches_tracked"}
    assert f"{len(found.filled)} counters of batches are not in the file" in found.report()
    name, norm = "backbone.body.bn1.weight", tensors["bn1.weight"]
    torch.testing.assert_close(found.weights[name], norm, rtol=0, atol=0)
    old = convert_weights(tensors, "hrnet", shapes)  # without counters: InPlaceABN
    torch.testing.assert_close(old.weights[name], norm.abs() + 1e-5, rtol=0, atol=0)


def test_record_of_the_origin(w18, tmp_path):
    file = write(tmp_path / "published.pth", w18[0], "")
    config = "hrnet_cityscapes"
    for suffix in (".pth", ".safetensors"):
        output = tmp_path / f"folder/out{suffix}"
        convert("hrnet", file, output, config)
        cfg = load(config, *W18, "MODEL.WEIGHTS", str(output), "INPUT.FORMAT", "BGR")
        with pytest.raises(ValueError, match="(?s)from hrnet .published.pth.*FORMAT is BGR"):
            build_trained_model(cfg)
    record = torch.load(tmp_path / "folder/out.pth", weights_only=True)["conversion"]
    assert record["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (record["source"], record["file"]) == ("hrnet", "published.pth")
    assert record["settings"]["MODEL.PIXEL_MEAN"] == [123.675, 116.28, 103.53]
    assert record["settings"]["INPUT.INTERPOLATION"] == "bilinear"
    assert record["test_images"]["INPUT.MAX_SIZE_TEST"] == 8192
    written = sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert written == ["out.pth", "out.safetensors", "out.yaml"]


def test_entries_beside_the_weights_are_named(w18, tmp_path, capsys):
    file = tmp_path / "published.pth"
    for content in (
        {"state_dict": w18[0], "meta": {"epoch": 3}},
        {"model": w18[0], "model_ema": w18[0], "optimizer": {}},
    ):
        torch.save(content, file)
        convert("hrnet", file, tmp_path / "out.pth", "hrnet_cityscapes")
    printed = capsys.readouterr().out
    for name in ("meta", "model_ema", "optimizer"):
        assert f"dropped: {name} (an entry beside the weights)" in printed


def test_the_published_file_is_not_overwritten(w18, tmp_path):
    file = write(tmp_path / "published.pth", w18[0], "")
    before = file.read_bytes()
    with pytest.raises(ValueError, match="would replace the published one"):
        convert("hrnet", file, file, "hrnet_cityscapes")
    assert file.read_bytes() == before


def test_no_inplace_abn_in_mmsegmentation():
    with pytest.raises(ValueError, match="no weights of mmseg have InPlaceABN"):
        convert_weights({}, "mmseg", {}, inplace_abn=True)


@pytest.mark.parametrize("case", ["hrnet W18, FullModel", "openseg R-50", "mmseg HR18s"])
def test_a_published_file_as_model_weights_is_to_be_converted(case, tmp_path):
    cfg, tensors, _, _ = make(case)
    file = write(tmp_path / "published.pth", tensors, CASES[case][-1])
    model = build_model(cfg)
    for strict in (True, False):  # evaluation, training
        with pytest.raises(ValueError, match="convert them with ocr-panoptic convert"):
            SafeCheckpointer(model, strict=strict).load(str(file))


def test_published_file_as_safetensors(w18, tmp_path):
    file = tmp_path / "published.safetensors"
    save_file(w18[0], file)
    output = tmp_path / "out.pth"
    convert("hrnet", file, output, "hrnet_cityscapes")
    weights = torch.load(output, weights_only=True)["model"]
    assert torch.equal(weights["backbone.body.conv1.weight"], w18[0]["conv1.weight"])


class Custom:
    """A class that a pickle of plain tensors does not need."""


def test_pickles_that_run_code_need_a_flag(w18, tmp_path, capsys):
    file, output = tmp_path / "published.pth", tmp_path / "out.pth"
    torch.save({"state_dict": w18[0], "config_dict": Custom()}, file)
    arguments = ("hrnet", file, output, "hrnet_cityscapes")
    with pytest.raises(ValueError, match="--trust-pickle"):
        convert(*arguments)
    assert not output.exists()
    convert(*arguments, flags=("--trust-pickle",))


@pytest.mark.parametrize(
    "file, output, message",
    [
        ("nowhere.pth", "out.pth", "nowhere.pth: no such file"),
        ("text.pth", "out.pth", "text.pth is not a checkpoint"),
        ("text.pth", "out.onnx", "out.onnx: expected a name that ends in .pth or .safetensors"),
    ],
)
def test_files_that_make_no_sense(file, output, message, tmp_path):
    (tmp_path / "text.pth").write_text("no weights")
    arguments = tmp_path / file, tmp_path / output, "hrnet_cityscapes"
    with pytest.raises((FileNotFoundError, ValueError), match=re.escape(message)):
        convert("hrnet", *arguments)


# FACTS of the published codes: channels, mean and deviation of the pixels in 0..255 in this order.
RGB = ("RGB", [255 * m for m in (0.485, 0.456, 0.406)], [255 * s for s in (0.229, 0.224, 0.225)])
PREPROCESSING = {
    "openseg_R_101": ("BGR", [102.9801, 115.9465, 122.7717], [1.0, 1.0, 1.0]),
    "openseg": ("BGR", *RGB[1:]),
    "": RGB,
}


@pytest.mark.parametrize("name", FILES)
def test_preprocessing(name):
    """From the picture's file to the network's input."""
    expected = next(v for k, v in PREPROCESSING.items() if name.startswith(k))
    cfg = load(name)
    cfg.INPUT.FIXED_SIZE, cfg.INPUT.MIN_SIZE_TEST = [], 0
    bgr = np.random.default_rng(0).integers(0, 256, (32, 64, 3), np.uint8)
    order, mean, std = expected
    image = bgr[..., ::-1] if order == "RGB" else bgr
    wanted = (image.transpose(2, 0, 1) - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    seen = []

    class Network(nn.Module):
        """Only what stands between a picture and the backbone."""

        pixel_mean = torch.tensor(cfg.MODEL.PIXEL_MEAN)[:, None, None]
        pixel_std = torch.tensor(cfg.MODEL.PIXEL_STD)[:, None, None]

        def forward(self, inputs):
            seen.append((inputs[0]["image"] - self.pixel_mean) / self.pixel_std)
            return [{}]

    predict(cfg, Network(), bgr)
    torch.testing.assert_close(seen[0], torch.tensor(wanted).float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FILES)
def test_the_table_is_what_the_weights_need(name):
    """InPlaceABN aside, which only the file tells."""
    source, _, rest = name.partition("_")
    backbone = "resnet" if rest.startswith("R_101") else "hrnet"
    conversion = Conversion(source, backbone, inplace_abn=source == "openseg")
    assert differing_settings(load(name), conversion.expected_settings()) == []


# Keys that shapes do not show. Their values are those of published_files.py.
ASKED = {
    *("MODEL.ALIGN_CORNERS", "MODEL.PAD_TO_MULTIPLE", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"),
    *("MODEL.OCR.NEGATIVE_SLOPE", "MODEL.OCR.SCALE_RELATION", "MODEL.BACKBONE.NAME"),
    *("INPUT.FORMAT", "INPUT.INTERPOLATION"),
}
OF_HRNET = {"MODEL.TIMM.ENLARGE_TWICE"}
OF_RESNET = {
    *("MODEL.RESNETS.STEM_TYPE", "MODEL.RESNETS.STRIDE_IN_1X1", "MODEL.RESNETS.CONTRACT_DILATION"),
    *("MODEL.RESNETS.RES4_DILATION", "MODEL.RESNETS.RES5_DILATION"),
    *("MODEL.RESNETS.RES5_MULTI_GRID", "MODEL.RESNETS.STEM_CEIL_MODE"),
}


@pytest.mark.parametrize(
    "source, backbone, keys",
    [
        ("openseg", "resnet", OF_RESNET | {"MODEL.CONTEXT.DILATIONS"}),
        ("mmseg", "resnet", OF_RESNET),
        *((source, "hrnet", OF_HRNET) for source in ("openseg", "hrnet", "nvidia", "mmseg")),
    ],
)
def test_what_is_asked_for(source, backbone, keys):
    for inplace_abn in (False, True):
        found = Conversion(source, backbone, inplace_abn).expected_settings()
        assert found.keys() == ASKED | keys
        leaks = inplace_abn and source == "openseg"
        assert found["MODEL.OCR.NEGATIVE_SLOPE"] == (0.01 if leaks else 0.0)


def test_a_key_that_another_version_has_recorded():
    record = {"source": "hrnet", "file": "f.pth", "settings": {"MODEL.RENAMED": 1}}
    with pytest.raises(ValueError, match="MODEL.RENAMED is unknown, expected 1"):
        check_settings(load("hrnet_cityscapes"), record, strict=True)


def test_training_goes_on_with_a_warning(w18, tmp_path, caplog):
    file, output = write(tmp_path / "published.pth", w18[0], ""), tmp_path / "out.pth"
    config = "hrnet_cityscapes"
    convert("hrnet", file, output, config)
    record = torch.load(output, weights_only=True)["conversion"]
    with caplog.at_level(logging.WARNING):
        check_settings(load(config), record, strict=False)
        assert not caplog.records
        check_settings(load(config, "MODEL.ALIGN_CORNERS", "False"), record, strict=False)
    assert "MODEL.ALIGN_CORNERS is False, expected True" in caplog.text
