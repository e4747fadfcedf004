"""Converted weights give the published logits; every tensor that does not fit is named."""

import functools
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling import build_model
from safetensors.torch import save_file
from torch import Tensor, nn

from ocr_panoptic.checkpoint import Demands, SafeCheckpointer
from ocr_panoptic.checkpoint.conversion import Conversion, convert_weights
from ocr_panoptic.checkpoint.settings import differing_settings
from ocr_panoptic.predict.trained_model import build_trained_model
from support import conversions
from support import published_networks as published
from support.conversions import (
    CASES,
    PLAIN,
    convert,
    image,
    load,
    make,
    network_input,
    shapes_of,
    write,
)
from support.published_files import FILES
from support.tiny_runs import predict


@pytest.fixture(autouse=True)
def uninitialized(monkeypatch):
    """Skip random initialisation, which is slow, because all weights come from files."""
    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(Tensor, name, lambda self, *_, **__: self)


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", [c for c in CASES if not c.endswith("R-50")])  # of one label
def test_logits_are_those_of_the_published_network(case, tmp_path, capsys):
    """Through the files: published file -> tool -> MODEL.WEIGHTS -> logits, on 65 x 97 pixels."""
    this, source = CASES[case], CASES[case].source
    cfg, tensors, x, expected = make(case)
    cfg.TEST.OPTIMIZED = False  # it rounds differently, see modeling/test_deploy.py
    file = write(tmp_path / "published.pth", tensors, this.prefix, wrap=this.prefix != "model.")
    suffix = ".safetensors" if source == "mmseg" else ".pth"
    cfg.MODEL.WEIGHTS = str(tmp_path / f"converted{suffix}")
    convert(this.config, file, cfg.MODEL.WEIGHTS)
    weights = ("MODEL.WEIGHTS", cfg.MODEL.WEIGHTS, "OUTPUT_DIR", "./output/converted")
    written = (tmp_path / "converted.yaml").read_text()
    assert written == FILES[this.config].load(*this.opts, *weights).dump()
    model = build_trained_model(cfg)
    with torch.no_grad():
        found = model.network.layers([{"image": x}])
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.std() > 0.3  # not a constant map
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    # Labels as in the published code: corners aligned; padding, on ADE20K, cut off.
    padded = network_input(cfg, x).shape[2:]
    scores = F.interpolate(found[1], padded, mode="bilinear", align_corners=source != "mmseg")
    model.network.inference.flip = False  # LIP's tests also average mirrored images
    labels = model([{"image": x}])[0]["labels"]
    assert torch.equal(labels, scores[0, :, :65, :97].argmax(0)) and len(labels.unique()) > 1
    printed = capsys.readouterr().out
    assert ("|weight| + 1e-05" in printed) == bool({"inplace_abn", "mixed"} & this.norms.keys())
    biases = sum(name.endswith(".bias") and name[:-4] + "running_mean" not in tensors
                 for name in tensors) - 2  # fmt: skip
    assert f"{biases} biases folded" in printed


@pytest.mark.parametrize(
    "case, size",
    [
        *((case, (69, 101)) for case in ("hrnet W18, FullModel", "mmseg HR18s")),
        *((case, (101, 133)) for case in ("hrnet W18, FullModel", "openseg W18, SyncBN")),
        ("openseg R-50", (64, 96)),  # STEM_CEIL_MODE matters for even sides only
    ],
)
@torch.no_grad()
def test_images_of_any_size(case, size):
    """In float64, since norms of random weights fit one size; rounding of folded biases is left."""
    cfg, tensors, _, _ = make(case)
    x, weights = network_input(cfg, image(*size)), published.Weights(**CASES[case].norms)
    weights.tensors = {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}
    model = build_model(cfg).eval()
    found = convert_weights(tensors, CASES[case].source, shapes_of(model))
    model.load_state_dict(found.weights)
    expected = CASES[case].network(weights, x.double())[1]
    most = 5e-6 * expected.abs().max().item()
    torch.testing.assert_close(model.double().logits(x.double()), expected, rtol=0, atol=most)


# Keys that shapes do not show, with another value each that changes the logits of a network.
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
    ("mmseg HR18s", "MODEL.ALIGN_CORNERS", True),
    ("mmseg HR18s", "MODEL.TIMM.ENLARGE_TWICE", False),
]


@pytest.mark.parametrize("case, key, value", DETAILS)
@torch.no_grad()
def test_every_setting_matters_and_is_demanded(case, key, value):
    cfg, tensors, x, (_, expected) = make(case)
    conversion = convert_weights(tensors, CASES[case].source, shapes_of(build_model(cfg)))
    cfg.merge_from_list([key, value])
    (fault,) = differing_settings(cfg, conversion.expected_settings())
    assert fault.startswith(f"{key} is {value}, expected")
    model = build_model(cfg).eval()
    model.load_state_dict(conversion.weights)
    found = model.layers([{"image": x}])[1][..., : expected.shape[2], : expected.shape[3]]
    assert (found - expected).abs().max() > 1e-3


# Facts from the published code: channel order, and pixel mean and deviation in 0..255.
RGB = ("RGB", [255 * m for m in (0.485, 0.456, 0.406)], [255 * s for s in (0.229, 0.224, 0.225)])
PREPROCESSING = {
    "openseg_R_101": ("BGR", [102.9801, 115.9465, 122.7717], [1.0, 1.0, 1.0]),
    "openseg": ("BGR", *RGB[1:]),
    "": RGB,
}


@pytest.mark.parametrize("name", FILES)
def test_preprocessing(name):
    """The network's input is equal, from the file of a picture on."""
    cfg = load(name)
    cfg.INPUT.FIXED_SIZE, cfg.INPUT.MIN_SIZE_TEST = [], 0
    bgr = np.random.default_rng(0).integers(0, 256, (32, 64, 3), np.uint8)
    order, mean, std = next(v for k, v in PREPROCESSING.items() if name.startswith(k))
    image = bgr[..., ::-1] if order == "RGB" else bgr
    wanted = (image.transpose(2, 0, 1) - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    seen = []

    class Network(nn.Module):
        pixel_mean = torch.tensor(cfg.MODEL.PIXEL_MEAN)[:, None, None]
        pixel_std = torch.tensor(cfg.MODEL.PIXEL_STD)[:, None, None]

        def forward(self, inputs):
            seen.append((inputs[0]["image"] - self.pixel_mean) / self.pixel_std)
            return [{}]

    predict(cfg, Network(), bgr)
    torch.testing.assert_close(seen[0], torch.tensor(wanted).float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FILES)
def test_the_needed_settings_are_demanded(name):
    """The tool finds channels and kernels by shapes, and InPlaceABN by names."""
    source, _, rest = name.partition("_")
    backbone = "resnet" if rest.startswith("R_101") else "hrnet"
    expected = Conversion(source, backbone, inplace_abn=source == "openseg").expected_settings()
    assert differing_settings(load(name), expected) == []
    shown = ("CHANNELS", "TIMM.NAME", "KERNEL")
    asked = {key for key in FILES[name].needed[::2] if not key.endswith(shown)}
    asked |= {"MODEL.OCR.SCALE_RELATION", "MODEL.BACKBONE.NAME", "INPUT.INTERPOLATION"}
    if backbone == "resnet":
        asked |= {f"MODEL.RESNETS.{n}" for n in ("STEM_TYPE", "RES4_DILATION", "STRIDE_IN_1X1")}
    assert expected.keys() >= asked
    plain = Conversion(source, backbone, inplace_abn=False).expected_settings()
    assert plain["MODEL.OCR.NEGATIVE_SLOPE"] == 0


SEGFIX = "openseg_segfix"
W18 = ("MODEL.TIMM.NAME", "hrnet_w18")
FULL = functools.partial(published.hrnet, small=False)
HRNET2X = ("MODEL.TIMM.NAME", "hrnet2x_w20", "MODEL.SEM_SEG_HEAD.IN_FEATURES")
HRNET2X += (str([f"stage{i}" for i in range(1, 6)]),)


@pytest.mark.parametrize(
    "backbone, opts, norms",
    [
        (FULL, (*W18, *PLAIN), {"nested": True}),
        (published.hrnet, conversions.SMALL, {"inplace_abn": True}),
        (published.hrnet2x, HRNET2X, {"inplace_abn": True}),
    ],
)
def test_segfix(backbone, opts, norms, tmp_path, capsys):
    cfg, weights = load(SEGFIX, "TEST.OPTIMIZED", "False", *opts), published.Weights(**norms)
    x = network_input(cfg, image(*((33, 49) if opts == HRNET2X else (65, 97))))
    with torch.no_grad():
        expected = published.openseg_segfix(weights, x, backbone)
    file = write(tmp_path / "published.pth", weights.tensors, "module.")
    cfg.MODEL.WEIGHTS = str(tmp_path / "converted.pth")
    convert(SEGFIX, file, cfg.MODEL.WEIGHTS)
    keys = ("MODEL.WEIGHTS", cfg.MODEL.WEIGHTS, "OUTPUT_DIR", "./output/converted")
    assert (tmp_path / "converted.yaml").read_text() == FILES[SEGFIX].load(*opts, *keys).dump()
    model = build_trained_model(cfg).network
    with torch.no_grad():
        found = model.layers(x)
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.std() > 0.1  # not a constant map
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())
    printed = capsys.readouterr().out
    assert "0 biases folded" in printed and "context.g" not in printed
    assert ("|weight| + 1e-05" in printed) == norms.get("inplace_abn", False)
    if PLAIN[0] not in opts:
        with pytest.raises(ValueError, match="NEGATIVE_SLOPE is 0.0, expected 0.01"):
            convert(SEGFIX, file, tmp_path / "out.pth", *PLAIN)


NVIDIA, W18_COARSE = "nvidia_cityscapes", conversions.W18


@pytest.fixture
def network():
    """Return random weights, an image and its logits at a single scale."""
    weights, x = published.Weights(seed=2), image(64, 128)
    with torch.no_grad():
        logits = published.nvidia_hmsa(weights, network_input(load(NVIDIA, *W18_COARSE), x))
    return weights, x, logits


def converted(folder, tensors, *opts):
    cfg = load(NVIDIA, *W18_COARSE, *opts)
    cfg.TEST.OPTIMIZED = False
    cfg.MODEL.WEIGHTS = str(folder / "converted.pth")
    file = write(folder / "published.pth", tensors, "module.")
    convert(NVIDIA, file, cfg.MODEL.WEIGHTS, *opts)
    return cfg, build_trained_model(cfg).network


def test_logits_equal_the_published_network_and_scales(network, tmp_path, capsys):
    """At no scale is a size a multiple of 32, and odd sides have no exact half."""
    weights, x, expected = network
    cfg, model = converted(tmp_path, weights.tensors)
    assert model.hierarchy.scales == (2.0, 1.0, 0.5)
    with torch.no_grad():
        for ours, theirs in zip(model._scale(network_input(cfg, x)), expected, strict=True):
            assert theirs.std() > 0.05
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        # Float64, because norms of random weights fit only one scale and other scales give logits
        # in the hundreds. Rounding of the folded biases is left.
        for name, tensor in weights.tensors.items():
            weights.tensors[name] = tensor.double() if tensor.is_floating_point() else tensor
        model.double()
        for size, scales in (((45, 69), (2.0, 1.0, 0.5)), ((69, 101), (1.0, 0.5))):
            x, model.hierarchy.scales = network_input(cfg, image(*size)).double(), scales
            blended = published.nvidia_scales(weights, x, scales)
            found, most = model.logits(x), blended.abs().max().item()
            torch.testing.assert_close(found, blended, rtol=0, atol=5e-6 * most)
            assert blended.std(dim=(2, 3)).mean() > 1
    assert "2 biases folded" in capsys.readouterr().out


def test_a_network_without_attention(network, tmp_path):
    weights, x, expected = network
    plain = {k: v for k, v in weights.tensors.items() if not k.startswith("scale_attn")}
    off = ("MODEL.HMSA.ENABLED", "False", "TEST.SCALES", "[1.0]")
    _, model = converted(tmp_path, plain, *off)
    with torch.no_grad():
        for ours, theirs in zip(model.layers([{"image": x}]), expected):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def w18() -> tuple[dict[str, Tensor], dict[str, tuple]]:
    """Return a published state dict, and the shapes of the model that it fits."""
    cfg, tensors, _, _ = make("hrnet W18, FullModel")
    return tensors, shapes_of(build_model(cfg))


@pytest.fixture
def published_file(w18, tmp_path) -> Path:
    return write(tmp_path / "published.pth", w18[0], "")


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("cls_head.bias", "missing", "sem_seg_head.refined_predictor.bias: in the model"),
        ("stage4.1.fuse_layers.3.2.0.0.weight", "missing", "body.stage4.1.fuse.*: in the model"),
        ("ocr_gather_head.weight", "extra", "ocr_gather_head.weight: in the file, but not in the"),
        ("stage4.3.branches.0.0.conv1.weight", "extra", "stage4.3.*which the model does not have"),
        ("conv3x3_ocr.1.0.running_var", "extra", "conv3x3_ocr.1.*another .* becomes .*bottlenec"),
        ("model.cls_head.weight", "extra", "model.cls_head.weight: another .* becomes .*predict"),
        ("conv3x3_ocr.0.bias", "missing", "bottleneck.bias: in the published network"),
        ("ocr_distri_head.object_context_block.f_up.0.bias", "extra", ".*context.rho.bias, which"),
        ("cls_head.weight", "shape", r"\(7, 1, 1, 1\) in the file, \(19, 512, 1, 1\) for"),
        ("conv3x3_ocr.0.bias", "shape", r"r.0.bias: \(7, 1, 1, 1\) in the file, \(512"),
    ],
)
def test_tensors_that_do_not_fit(w18, name, change, message):
    tensors, shapes = dict(w18[0]), w18[1]
    if change == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(7, 1, 1, 1)
    fault = f"(?s)hrnet weights .* [12] tensor.s. do not fit.*{message}"
    with pytest.raises(ValueError, match=fault):
        convert_weights(tensors, "hrnet", shapes)


@pytest.mark.parametrize(
    "config, file, output, message",
    [
        (
            "hrnet_lip",
            "published.pth",
            "out.pth",
            "4 tensor.s. .*(19, 512, 1, 1) in the file, (20,",
        ),
        ("mmseg_R_101_cityscapes", "published.pth", "out.pth", "hrnet weights that the config"),
        (
            "hrnet_cityscapes",
            "own.pth",
            "out.pth",
            "hrnet weights: no tensor is named like",
        ),
        ("hrnet_cityscapes", "nowhere.pth", "out.pth", "nowhere.pth: file not found"),
        ("hrnet_cityscapes", "text.pth", "out.pth", "text.pth is not a checkpoint"),
        ("hrnet_cityscapes", "text.pth", "text.pth", "text.pth would overwrite the published file"),
        ("hrnet_cityscapes", "text.pth", "out.onnx", "out.onnx; expected a name that ends in .pth"),
    ],
)
def test_unusable_files(config, file, output, message, published_file, tmp_path):
    torch.save({"sem_seg_head.context.g.weight": torch.zeros(1)}, tmp_path / "own.pth")
    (tmp_path / "text.pth").write_text("no weights")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    message = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises((FileNotFoundError, ValueError), match=f"(?s){message}"):
        convert(config, tmp_path / file, tmp_path / output, source="hrnet")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_norms_without_counters_are_inplace_abns(w18):
    shapes = w18[1]
    tensors = {k: v for k, v in w18[0].items() if not k.endswith("num_batches_tracked")}
    found = convert_weights(tensors, "hrnet", shapes)
    assert {name.rpartition(".")[2] for name in found.filled} == {"num_batches_tracked"}
    assert f"{len(found.filled)} batch counters missing from the file" in found.report()
    expected = tensors["bn1.weight"].abs() + 1e-5
    torch.testing.assert_close(found.weights["backbone.body.bn1.weight"], expected, rtol=0, atol=0)


def test_record_of_the_origin(published_file, tmp_path):
    as_safetensors = tmp_path / "published.safetensors"
    save_file(torch.load(published_file)["state_dict"], as_safetensors)
    convert("hrnet_cityscapes", as_safetensors, tmp_path / "other.pth")
    for suffix in (".pth", ".safetensors"):
        output = tmp_path / f"folder/out{suffix}"
        convert("hrnet_cityscapes", published_file, output)
        opts = ("MODEL.WEIGHTS", str(output), "INPUT.FORMAT", "BGR")
        with pytest.raises(ValueError, match="(?s)INPUT.FORMAT is BGR, (expected|but was) RGB"):
            build_trained_model(load("hrnet_cityscapes", *W18_COARSE, *opts))
    found = torch.load(tmp_path / "folder/out.pth", weights_only=True)
    record, other = found["conversion"], torch.load(tmp_path / "other.pth")["model"]
    assert all(torch.equal(value, other[name]) for name, value in found["model"].items())
    assert record["sha256"] == hashlib.sha256(published_file.read_bytes()).hexdigest()
    assert (record["source"], record["file"]) == ("hrnet", "published.pth")
    assert record["settings"]["MODEL.PIXEL_MEAN"] == [123.675, 116.28, 103.53]
    assert record["settings"]["INPUT.INTERPOLATION"] == "bilinear"
    written = sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert written == ["out.pth", "out.safetensors", "out.yaml"]


def test_a_published_file_as_model_weights_is_to_be_converted(published_file):
    for strict in (True, False):  # evaluation, training
        with pytest.raises(ValueError, match="convert the file with ocr-panoptic convert"):
            checkpointer = SafeCheckpointer(nn.Linear(1, 1), demands=Demands(strict=strict))
            checkpointer.load(str(published_file))


def test_every_tensor_and_entry_is_accounted_for(w18, published_file, tmp_path, capsys):
    tensors, shapes = w18
    tensors = {**tensors, "loss.criterion.weight": torch.ones(19)}
    found = convert_weights(tensors, "hrnet", shapes)
    assert set(found.weights) == set(shapes)
    assert {*found.renamed, *found.folded, *found.dropped} == set(tensors)
    assert set(found.dropped) == {"loss.criterion.weight"} and not found.filled
    assert sorted(found.folded) == ["aux_head.0.bias", "conv3x3_ocr.0.bias"]
    for text in ("loss.criterion.weight", "class weights", "aux_head.0.bias"):
        assert text in found.report()
    other, output = tmp_path / "other.pth", tmp_path / "out.pth"
    torch.save({"model": w18[0], "model_ema": w18[0], "optimizer": {}, "config": Path("a")}, other)
    with pytest.raises(ValueError, match="--trust-pickle"):
        convert("hrnet_cityscapes", other, output)
    assert not output.exists()
    convert("hrnet_cityscapes", published_file, output)
    convert("hrnet_cityscapes", other, output, flags=("--trust-pickle",))
    printed = capsys.readouterr().out
    for name in ("meta", "model_ema", "optimizer"):
        assert f"dropped: {name} (not part of the weights)" in printed
