"""Safe and checked loading of weights, and the share of a model that they fill."""

import json
import pickle
import re
from urllib.error import URLError

import numpy as np
import pytest
import torch
from detectron2.utils.file_io import PathManager
from safetensors.torch import save_file
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.checkpoint.fit import Fit, Shape
from ocr_panoptic.checkpoint.reading import read_checkpoint
from ocr_panoptic.engine import load_config

executed: list[str] = []


def run() -> None:
    executed.append("ran")


class Payload:
    """An object whose pickle runs code when it is read."""

    def __reduce__(self):
        return run, ()


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))


def assert_equal_state(a: nn.Module, b: nn.Module) -> None:
    for k, v in a.state_dict().items():
        assert torch.equal(v, b.state_dict()[k]), k


def randomised() -> nn.Module:
    model = make_model()
    for p in model.parameters():
        nn.init.normal_(p)
    return model


def load(path, **options) -> nn.Module:
    """Return a model with the weights of a file."""
    SafeCheckpointer(model := make_model(), **options).load(str(path))
    return model


def test_saved_checkpoints_load(tmp_path):
    source, target = randomised(), make_model()
    SafeCheckpointer(source, str(tmp_path)).save("model", iteration=7)
    extra = SafeCheckpointer(target, strict=True).load(str(tmp_path / "model.pth"))
    assert_equal_state(source, target)
    assert extra["iteration"] == 7


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_model_zoo_pickles_load_without_trust(tmp_path, protocol):
    """
    The model zoo's files, pickled dictionaries of NumPy arrays, need no trust.

    NumPy 1, here with protocol 0, wrote numpy.core.multiarray; NumPy 2 writes
    numpy._core.multiarray.
    """
    arrays = {k: np.asfortranarray(v.numpy()) for k, v in randomised().state_dict().items()}
    content = {"model": arrays, "__author__": "Detectron2 Model Zoo", "score": np.float64(41.5)}
    data = pickle.dumps(content, protocol)
    if protocol == 0:
        data = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        assert b"numpy.core.multiarray" in data
    (tmp_path / "zoo.pkl").write_bytes(data)
    assert_equal_state(randomised(), load(tmp_path / "zoo.pkl", strict=True))


FILES = {
    "pkl": lambda data, path: path.write_bytes(pickle.dumps(data)),
    "pth": torch.save,
    "old pth": lambda data, path: torch.save(data, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("kind", FILES)
def test_code_in_a_file_is_refused_unless_trusted(tmp_path, kind):
    """The message names the code, and does not repeat torch's advice to disable its protection."""
    target, path = make_model(), tmp_path / f"weights.{kind.split()[-1]}"
    state = {k: v.numpy() if kind == "pkl" else v for k, v in randomised().state_dict().items()}
    FILES[kind]({"model": state, "__author__": "somebody", "extra": Payload()}, path)
    executed.clear()
    before = [p.clone() for p in target.parameters()]
    with pytest.raises(ValueError, match="MODEL.TRUST_PICKLE True") as error:
        SafeCheckpointer(target).load(str(path))
    assert f"{path.name} is a pickle that wants to run {__name__}.run, which" in str(error.value)
    assert "weights_only" not in str(error.value) and "PyTorch" not in str(error.value)
    assert executed == []
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters()))
    assert_equal_state(randomised(), load(path, trust_pickle=True))
    assert executed == ["ran"]


@pytest.mark.parametrize(
    "path, fault",
    [
        ("nowhere.pth", "nowhere.pth do not exist"),
        ("/", "are not a file"),
        ("s3://bucket/m.pth", "s3://bucket/m.pth do not exist"),
        ("https://nowhere/m.pth", "https://nowhere/m.pth could not be downloaded .*not known"),
    ],
)
def test_missing_weights(monkeypatch, path, fault):
    def fail(path: str) -> str:
        raise URLError("Name or service not known")

    if path.startswith("https"):
        monkeypatch.setattr(PathManager, "get_local_path", fail)
    with pytest.raises(OSError, match=fault):
        load(path)


@pytest.mark.parametrize("suffix", ["pkl", "pth", "safetensors"])
@pytest.mark.parametrize("damage", ["empty", "half", "page", "text", "bytes", "no tensors"])
def test_a_damaged_file_asks_for_another_download(tmp_path, suffix, damage):
    path, state = tmp_path / f"m.{suffix}", randomised().state_dict()
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    if suffix == "safetensors":
        save_file(state, path)
    else:
        content = {"model": arrays if suffix == "pkl" else state, "__author__": "zoo"}
        FILES[suffix](content, path)
    whole = path.read_bytes()
    load(path)
    bytes_of = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "page": b"<!DOCTYPE html><html>Not found</html>",
        "bytes": b"\x80\x02" + bytes(range(256)),
        "text": b"version https://git-lfs.github.com/spec/v1",
    }
    if damage in bytes_of:
        path.write_bytes(bytes_of[damage])
    elif suffix == "safetensors":
        save_file({}, path)
    else:
        FILES[suffix]({"model": [1, 2], "__author__": "zoo"}, path)
    with pytest.raises(ValueError) as error:
        load(path)
    message, size = str(error.value), path.stat().st_size
    assert f"m.{suffix} is not a checkpoint or is incomplete ({size} bytes" in message
    found = {"page": "a web page", "no tensors": "without named tensors"}
    assert found.get(damage, "") in message
    assert "download it again" in message
    assert not re.search("TRUST_PICKLE|weights_only|\n", message)


def test_changed_bytes_are_refused(tmp_path):
    path = tmp_path / "m.pth"
    values = torch.arange(64.0)
    torch.save({"model": {"a": values}}, path)
    whole = bytearray(path.read_bytes())
    whole[whole.index(values.numpy().tobytes())] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="the bytes of .* were changed"):
        load(path)


@pytest.mark.parametrize("record", ["7", "{}", '{"source": "a", "file": "b"}', "no JSON"])
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_broken_record_of_a_conversion(tmp_path, suffix, record):
    path, state = tmp_path / f"m.{suffix}", randomised().state_dict()
    if suffix == "safetensors":
        save_file(state, path, {"conversion": record})
    else:
        record = json.loads(record) if record[:2] != "no" else record
        torch.save({"model": state, "conversion": record}, path)
    with pytest.raises(ValueError, match=f"m.{suffix}: its record of where the weights come from"):
        load(path)


@pytest.mark.parametrize("suffix", ["pkl", "pth"])
@pytest.mark.parametrize(
    "content, message",
    [
        ([1, 2], "it holds a list, not named tensors"),
        ({}, "without named tensors"),
        ({"epoch": 3, "arch": "resnet50"}, "epoch is a int"),
        ({"model": {"a": torch.ones(1), "b": None}}, "b is a NoneType"),
        ({"model": {7: torch.ones(1)}}, "7 is a (Tensor|ndarray)"),
    ],
)
def test_a_file_without_plain_tensors(tmp_path, suffix, content, message):
    if "model" in content and suffix == "pkl":
        arrays = {key: value and value.numpy() for key, value in content["model"].items()}
        content = {"model": arrays, "__author__": "zoo"}
    FILES[suffix](content, tmp_path / f"m.{suffix}")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / f"m.{suffix}")


@pytest.mark.parametrize(
    "change, strict, fault",
    [
        ({"0.bias": None}, True, "0.bias: missing in the file"),
        ({"1.running_mean": None}, True, "1.running_mean: missing in the file"),
        (
            {"0.weight": torch.zeros(9, 3, 1, 1)},
            True,
            r"0.weight: \(9, 3, 1, 1\) in the file, \(4, 3, 1, 1\)",
        ),
        (dict.fromkeys(make_model().state_dict()), False, "do not fit the model: 6 of 6"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, change, strict, fault):
    state = {**randomised().state_dict(), "other.weight": torch.zeros(3), **change}
    torch.save({"model": {k: v for k, v in state.items() if v is not None}}, tmp_path / "m.pth")
    with pytest.raises(ValueError, match=fault):
        load(tmp_path / "m.pth", strict=strict)


def test_another_shape_is_in_the_summary_of_a_training(tmp_path):
    path, state = str(tmp_path / "m.pth"), randomised().state_dict()
    torch.save({"model": {**state, "0.weight": torch.zeros(9, 3, 1, 1)}}, path)
    checkpointer = SafeCheckpointer(make_model())
    checkpointer.load(path)
    assert checkpointer.summary().splitlines() == [
        f"{path} fills 5 of the model's 6 tensors",
        "  part    tensors    filled  initialised",
        "------  ---------  --------  -------------",
        "     0          2         1  weight",
        "     1          4         4",
    ]
    # Training on data with other classes keeps everything except the classifiers.
    started, found = make_model().state_dict(), checkpointer.model.state_dict()
    for key, value in {**state, "0.weight": started["0.weight"]}.items():
        assert torch.equal(found[key], value), key
    assert SafeCheckpointer(make_model()).summary() == "No weights are loaded: the model is random"


@pytest.mark.parametrize("strict", [False, True])
def test_weights_that_are_not_finite(tmp_path, strict):
    """A single NaN makes a network label all pixels 0."""
    source = randomised()
    source[0].weight.data[2, 1] = float("nan")
    source[1].running_var[3] = float("inf")
    torch.save({"model": source.state_dict()}, tmp_path / "model.pth")
    message = "model.pth are broken: 1 values of 0.weight are NaN or infinite, and 1 other"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "model.pth", strict=strict)


def fit_of(found: dict[str, Shape], expected: dict[str, Shape]) -> Fit:
    misshapen = [
        (n, found[n], expected[n]) for n in found if expected.get(n) not in (None, found[n])
    ]
    missing, unexpected = expected.keys() - found.keys(), [n for n in found if n not in expected]
    return Fit(expected, missing, misshapen, unexpected)


def test_by_hand():
    """
    The fit of four tensors is worked out by hand.

    The file lacks a tensor, has another shape for a second, and has a tensor too many. Counters and
    pixel statistics do not count.
    """
    model = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (4,), "b.bias": (4,)}
    model |= {"pixel_mean": (3,), "b.num_batches_tracked": ()}
    file = {"a.weight": (2, 3), "b.weight": (5,), "b.bias": (4,), "c.bias": (1,)}
    fit = fit_of(file | {"c.num_batches_tracked": ()}, model)
    assert fit.names == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert fit.faults == {
        "a.bias": "missing in the file",
        "b.weight": "(5,) in the file, (4,) in the model",
    }
    assert fit.unused == ["c.bias"]
    assert fit.listing(2).splitlines()[1:] == [
        "  a.bias: missing in the file",
        "  b.weight: (5,) in the file, (4,) in the model",
        "  ...",
    ]
    assert fit.backbone_share() == 1  # there is no backbone


def test_the_backbone_is_the_network_below_an_fpn():
    """Two of three tensors count, by hand; running statistics may be part of weight and bias."""
    names = ["conv.weight", "norm.weight", "norm.running_mean", "last.weight"]
    model = {f"backbone.bottom_up.{name}": (1,) for name in names}
    model |= {"backbone.fpn_lateral2.weight": (1,), "head.weight": (1,)}
    file = {name: (1,) for name in list(model)[:2]}
    assert fit_of(file, model).backbone_share() == pytest.approx(2 / 3)
    plain = {name.replace("bottom_up.", ""): shape for name, shape in model.items()}
    assert fit_of(dict(list(plain.items())[:2]), plain).backbone_share() == 2 / 4
    added = {"backbone.bottom_up.output_norms.res2.weight": (1,)}  # ImageNet files lack them
    assert fit_of(file, model | added).backbone_share() == pytest.approx(2 / 3)


@pytest.mark.parametrize("fills", ["backbone", "all but other classes", "four tensors", "head"])
def test_weights_of_another_model_are_refused_in_training(tmp_path, fills):
    def make() -> nn.Module:
        body = [nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) for _ in range(8)]
        return nn.ModuleDict({"backbone": nn.Sequential(*body), "head": nn.Conv2d(4, 5, 1)})

    weights, path = make().state_dict(), str(tmp_path / "m.pth")
    if fills == "all but other classes":
        weights |= {"head.weight": torch.zeros(9, 4, 1, 1), "head.bias": torch.zeros(9)}
    elif fills == "four tensors":
        weights = dict(list(weights.items())[:4])
    else:
        weights = {k: v for k, v in weights.items() if k.startswith(fills)}
    torch.save({"model": weights}, path)
    checkpointer = SafeCheckpointer(make(), min_share=0.9)
    if fills in ("backbone", "all but other classes"):
        checkpointer.load(path)
        assert "head " in checkpointer.summary() and "weight, bias" in checkpointer.summary()
        return
    # The share is of 8 * 4 tensors, without running statistics.
    share = {"head": "0%", "four tensors": "12%"}[fills]
    message = f"of another model: they fill {share} of the backbone(.|\n)*WEIGHTS_MIN_SHARE 0 to"
    with pytest.raises(ValueError, match=message) as error:
        checkpointer.load(path)
    advice = re.search(r"set (MODEL\S+) (\S+) to start", str(error.value)).groups()
    min_share = load_config("", list(advice)).MODEL.WEIGHTS_MIN_SHARE
    SafeCheckpointer(make(), min_share=min_share).load(path)


def test_too_little_memory_is_not_reported_as_damage(tmp_path, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        read_checkpoint(str(tmp_path / "a.pth"))
