"""A conversion names every tensor that does not fit, and every tensor that it drops."""

import hashlib
import re
from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model
from safetensors.torch import save_file
from torch import Tensor, nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings
from ocr_panoptic.checkpoint.convert import convert_weights
from ocr_panoptic.engine import build_trained_model
from support.conversions import CASES, W18, convert, load, make, shapes_of, write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("uninitialized")]


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
        ("conv3x3_ocr.1.0.running_var", "extra", "conv3x3_ocr.1.*a second tensor for .*bottlenec"),
        ("model.cls_head.weight", "extra", "model.cls_head.weight: a second tensor for .*predict"),
        ("conv3x3_ocr.0.bias", "missing", "bottleneck.bias: the published network has it"),
        (
            *("ocr_distri_head.object_context_block.f_up.0.bias", "extra"),
            "f_up.0.bias: would be sem_seg_head.context.rho.bias, which the model does not have",
        ),
        (
            "cls_head.weight",
            "shape",
            r"d.weight: \(7, 1, 1, 1\) in the file, \(19, 512, 1, 1\) for",
        ),
        ("conv3x3_ocr.0.bias", "shape", r"r.0.bias: \(7, 1, 1, 1\) in the file, \(512"),
    ],
)
def test_tensors_that_do_not_fit(w18, name, change, message):
    tensors, shapes = dict(w18[0]), w18[1]
    if change == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(7, 1, 1, 1)
    fault = f"(?s)weights of hrnet .* [12] tensors do not fit.*{message}"
    with pytest.raises(ValueError, match=fault):
        convert_weights(tensors, "hrnet", shapes)


@pytest.mark.parametrize("case", ["openseg R-50", "openseg W18, SyncBN", "mmseg HR18s"])
def test_a_missing_or_surplus_tensor_of_every_kind(case):
    cfg, tensors, _, _ = make(case)
    source, shapes = CASES[case].source, shapes_of(build_model(cfg))

    def refused(tensors: dict[str, Tensor], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            convert_weights(tensors, source, shapes)

    blocks = ("object_context_block", "conv_3x3", "conv3x3", "head", "stage2.0", "layer3.0")
    names = [n for n in tensors if any(b in n for b in blocks) and "num_batches" not in n]
    assert len(names) > 70
    for name in names[:: len(names) // 12]:
        refused({k: v for k, v in tensors.items() if k != name}, "1 tensors do not fit")
    for name in ("backbone.fc.weight", "decode_head.2.conv_seg.weight", "aux_head.1.0.0.weight"):
        fault = f"{name}: in the file, but not in the published"
        refused({**tensors, name: torch.zeros(3)}, fault)
    # A bias that the published network lacks.
    conv = "decode_head.1.bottleneck.conv" if source == "mmseg" else "backbone.layer1.0.conv1"
    fault = f"{conv}.bias: would be .*which the model does not have"
    refused({**tensors, f"{conv}.bias": torch.zeros(64)}, fault)


@pytest.mark.parametrize(
    "config, message",
    [
        ("hrnet_lip", r"4 tens.*cls_head.weight: \(19, 512, 1, 1\) in the file, \(20, 512, 1, 1\)"),
        ("mmseg_R_101_cityscapes", "not the weights of hrnet that the config describes"),
    ],
    ids=["classes", "backbone"],
)
def test_a_recipe_of_another_network(published_file, tmp_path, config, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        convert(config, published_file, tmp_path / "out.pth", source="hrnet")
    assert not any(tmp_path.glob("out*"))


@pytest.mark.parametrize("source", ["hrnet", "openseg"])
def test_weights_of_this_project_are_not_published_ones(source, tmp_path):
    save_file({"sem_seg_head.context.g.weight": torch.zeros(1)}, tmp_path / "own.safetensors")
    config = f"{source}_cityscapes"
    with pytest.raises(ValueError, match=f"weights of {source}: no tensor has a name of its head"):
        convert(config, tmp_path / "own.safetensors", tmp_path / "out.pth")


def test_norms_without_counters_are_inplace_abns(w18):
    tensors, shapes = w18
    tensors = {k: v for k, v in tensors.items() if not k.endswith("num_batches_tracked")}
    found = convert_weights(tensors, "hrnet", shapes)
    assert {name.rpartition(".")[2] for name in found.filled} == {"num_batches_tracked"}
    assert f"{len(found.filled)} counters of batches are not in the file" in found.report()
    expected = tensors["bn1.weight"].abs() + 1e-5
    torch.testing.assert_close(found.weights["backbone.body.bn1.weight"], expected, rtol=0, atol=0)


def test_record_of_the_origin(published_file, tmp_path):
    as_safetensors = tmp_path / "published.safetensors"
    save_file(torch.load(published_file)["state_dict"], as_safetensors)
    convert("hrnet_cityscapes", as_safetensors, tmp_path / "other.pth")
    for suffix in (".pth", ".safetensors"):
        output = tmp_path / f"folder/out{suffix}"
        convert("hrnet_cityscapes", published_file, output)
        cfg = load("hrnet_cityscapes", *W18, "MODEL.WEIGHTS", str(output), "INPUT.FORMAT", "BGR")
        with pytest.raises(ValueError, match="(?s)from hrnet .published.pth.*FORMAT is BGR"):
            build_trained_model(cfg)
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
        with pytest.raises(ValueError, match="convert them with ocr-panoptic convert"):
            SafeCheckpointer(nn.Linear(1, 1), strict=strict).load(str(published_file))


@pytest.mark.parametrize(
    "file, output, message",
    [
        ("nowhere.pth", "out.pth", "nowhere.pth: file not found"),
        ("text.pth", "out.pth", "text.pth is not a checkpoint"),
        ("text.pth", "text.pth", "text.pth: the converted file would replace the published one"),
        ("text.pth", "out.onnx", "out.onnx: expected a name that ends in .pth or .safetensors"),
    ],
)
def test_unusable_files(file, output, message, tmp_path):
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises((FileNotFoundError, ValueError), match=re.escape(message)):
        convert("hrnet_cityscapes", tmp_path / file, tmp_path / output)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("text.pth", "no weights")]


def test_training_goes_on_with_a_warning(caplog):
    def check(settings: dict, *opts: str, strict: bool) -> None:
        record = {"source": "hrnet", "file": "a.pth", "settings": settings}
        check_settings(load("hrnet_cityscapes", *opts), record, strict=strict)

    check({"MODEL.ALIGN_CORNERS": True}, strict=False)
    assert not caplog.records
    check({"MODEL.ALIGN_CORNERS": True}, "MODEL.ALIGN_CORNERS", "False", strict=False)
    assert "MODEL.ALIGN_CORNERS is False, expected True" in caplog.text
    with pytest.raises(ValueError, match="MODEL.RENAMED is unknown, expected 1"):
        check({"MODEL.RENAMED": 1}, strict=True)  # a key of another version


def test_every_tensor_and_entry_is_accounted_for(w18, published_file, tmp_path, capsys):
    """Pickles that run code need a flag."""
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
        assert f"dropped: {name} (an entry beside the weights)" in printed
