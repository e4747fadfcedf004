"""Safe and checked loading of weights."""

import pickle
from urllib.error import URLError

import numpy as np
import pytest
import torch
from detectron2.utils.file_io import PathManager
from safetensors.torch import save_file
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer

executed: list[str] = []


def run() -> None:
    executed.append("ran")


class Payload:
    """A pickle that runs code when it is read."""

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
    """The model zoo's format: a pickled dictionary of NumPy arrays. NumPy 1, here with protocol 0,
    wrote numpy.core.multiarray, NumPy 2 writes numpy._core.multiarray."""
    arrays = {k: v.numpy() for k, v in randomised().state_dict().items()}
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
    """The message names the code, and does not repeat torch's advice to switch its protection
    off."""
    target, path = make_model(), tmp_path / f"weights.{kind[-3:]}"
    state = {k: v.numpy() if kind == "pkl" else v for k, v in randomised().state_dict().items()}
    FILES[kind]({"model": state, "__author__": "somebody", "extra": Payload()}, path)
    executed.clear()
    before = [p.clone() for p in target.parameters()]
    with pytest.raises(ValueError, match="MODEL.TRUST_PICKLE True") as error:
        SafeCheckpointer(target).load(str(path))
    assert f"{kind[-3:]} is a pickle that wants to run {__name__}.run, which" in str(error.value)
    assert "weights_only" not in str(error.value) and "PyTorch" not in str(error.value)
    assert executed == []
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters()))
    assert_equal_state(randomised(), load(path, trust_pickle=True))
    assert executed == ["ran"]


@pytest.mark.parametrize(
    "path, fault",
    [
        ("nowhere.pth", "nowhere.pth do not exist"),
        ("/", "are no file"),
        ("s3://bucket/m.pth", "are at no address that can be read"),
    ],
)
def test_missing_file(path, fault):
    with pytest.raises(FileNotFoundError, match=fault):
        load(path)


def test_an_address_that_does_not_answer(monkeypatch):
    def fail(path: str) -> str:
        raise URLError("Name or service not known")

    monkeypatch.setattr(PathManager, "get_local_path", fail)
    with pytest.raises(OSError, match="https://nowhere/m.pth could not be downloaded .*not known"):
        load("https://nowhere/m.pth")


def complete_file(path) -> bytes:
    state = randomised().state_dict()
    if path.suffix == ".pkl":
        arrays = {k: v.numpy() for k, v in state.items()}
        path.write_bytes(pickle.dumps({"model": arrays, "__author__": "zoo"}))
    elif path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"model": state}, path)
    return path.read_bytes()


def test_a_pickle_of_a_newer_protocol_is_no_damaged_file(tmp_path):
    """PyTorch reads protocol 2 alone with weights_only."""
    content, path = {"model": randomised().state_dict()}, tmp_path / "m.pth"
    torch.save(content, path, pickle_protocol=4)
    with pytest.raises(ValueError, match="wants to run .*MODEL.TRUST_PICKLE"):
        load(path)
    assert_equal_state(randomised(), load(path, trust_pickle=True, strict=True))


def dump(content: object, path) -> None:
    with open(path, "wb") as f:
        {".pkl": pickle.dump, ".pth": torch.save}[path.suffix](content, f)


@pytest.mark.parametrize("suffix", ["pkl", "pth", "safetensors"])
@pytest.mark.parametrize("damage", ["empty", "half", "page", "text", "bytes", "no tensors"])
def test_a_damaged_file_is_to_be_downloaded_again(tmp_path, suffix, damage):
    path = tmp_path / f"m.{suffix}"
    whole = complete_file(path)
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
        dump({"model": [1, 2], "__author__": "zoo"}, path)
    found = {"empty": "empty", "page": "a web page", "no tensors": "without named tensors"}
    if suffix == "pth":
        found |= {"half": "its end is missing"}
    with pytest.raises(ValueError) as error:
        load(path)
    message, size = str(error.value), path.stat().st_size
    assert f"m.{suffix} is not a checkpoint or is incomplete ({size} bytes" in message
    assert found.get(damage, "") in message and "download it again" in message
    assert "TRUST_PICKLE" not in message


@pytest.mark.parametrize("suffix", ["pkl", "pth"])
@pytest.mark.parametrize(
    "content, message",
    [
        ([1, 2], "it holds a list, not named tensors"),
        ({}, "without named tensors"),
        ({"epoch": 3, "arch": "resnet50"}, "epoch is a int"),
        ({"model": {"a": torch.ones(1), "b": None}}, "b is a NoneType"),
        ({"model": {7: torch.ones(1)}}, "7 is a Tensor"),
        ({"model": {"a": torch.eye(2).to_sparse()}}, "a is no dense tensor"),
    ],
)
def test_a_file_of_other_things(tmp_path, suffix, content, message):
    path = tmp_path / f"m.{suffix}"
    content = {**content, "__author__": "zoo"} if "model" in content else content
    content = numpy_of(content) if suffix == "pkl" else content
    if suffix == "pkl" and "sparse" in str(content):
        return  # Detectron2's zoo has arrays
    dump(content, path)
    with pytest.raises(ValueError, match=message.replace("Tensor", "(Tensor|ndarray)")):
        load(path)


def numpy_of(content: object) -> object:
    if isinstance(content, dict):
        return {key: numpy_of(value) for key, value in content.items()}
    dense = isinstance(content, torch.Tensor) and content.layout is torch.strided
    return content.numpy() if dense else content


def test_changed_bytes_are_no_weights(tmp_path):
    path = tmp_path / "m.pth"
    values = torch.arange(64.0)
    torch.save({"model": {"a": values}}, path)
    whole = bytearray(path.read_bytes())
    whole[whole.index(values.numpy().tobytes())] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="the bytes of .* were changed"):
        load(path)


@pytest.mark.parametrize("record", [7, {}, {"source": "a", "file": "b", "settings": {1: 2}}])
def test_a_broken_record_of_a_conversion(tmp_path, record):
    torch.save({"model": randomised().state_dict(), "conversion": record}, tmp_path / "m.pth")
    with pytest.raises(ValueError, match="m.pth: its record of where the weights come from"):
        load(tmp_path / "m.pth")


def test_pycls_files_run_no_code(tmp_path):
    path, state = tmp_path / "m.pyth", randomised().state_dict()
    torch.save({"model_state": state, "extra": Payload()}, path)
    executed.clear()
    with pytest.raises(ValueError, match="MODEL.TRUST_PICKLE True"):
        load(path)
    assert executed == []
    torch.save({"model_state": state}, path)
    assert_equal_state(randomised(), load(path, strict=True))


def test_names_are_matched_on_request(tmp_path):
    """Detectron2's ``?matching_heuristics=True``: a name of the file may end one of the model."""
    source, target = randomised(), nn.ModuleDict({"body": make_model()})
    path = tmp_path / "m.pth"
    torch.save(source.state_dict(), path)
    with pytest.raises(ValueError, match="do not fit the model"):
        SafeCheckpointer(target).load(str(path))
    SafeCheckpointer(target, strict=True).load(f"{path}?matching_heuristics=True")
    assert_equal_state(source, target["body"])
    with pytest.raises(ValueError, match="are followed by [?]heuristics=1; only"):
        SafeCheckpointer(target).load(f"{path}?heuristics=1")


def test_other_shape_is_an_error_for_evaluation_and_in_the_summary_for_training(tmp_path):
    path, state = str(tmp_path / "m.pth"), randomised().state_dict()
    torch.save({"model": {**state, "0.weight": torch.zeros(9, 3, 1, 1)}}, path)
    with pytest.raises(ValueError, match=r"0.weight: \(9, 3, 1, 1\) in the file, \(4, 3, 1, 1\)"):
        load(path, strict=True)
    checkpointer = SafeCheckpointer(make_model())
    checkpointer.load(path)
    assert checkpointer.summary().splitlines() == [
        f"{path} fills 5 of the model's 6 tensors",
        "  part    tensors    filled  initialised",
        "------  ---------  --------  -------------",
        "     0          2         1  weight",
        "     1          4         4",
    ]
    # A stage on data of other classes takes along all but its classifiers.
    started, found = make_model().state_dict(), checkpointer.model.state_dict()
    for key, value in {**state, "0.weight": started["0.weight"]}.items():
        assert torch.equal(found[key], value), key
    assert SafeCheckpointer(make_model()).summary() == "No weights are loaded: the model is random"


@pytest.mark.parametrize("key", ["0.bias", "1.running_mean"])
def test_missing_tensor_is_an_error_for_evaluation(tmp_path, key):
    state = randomised().state_dict()
    del state[key]
    torch.save({"model": state}, tmp_path / "m.pth")
    with pytest.raises(ValueError, match=f"{key}: missing in the file"):
        load(tmp_path / "m.pth", strict=True)


def test_weights_of_something_else_are_an_error(tmp_path):
    torch.save({"model": {"other.weight": torch.zeros(3)}}, tmp_path / "m.pth")
    with pytest.raises(ValueError, match="do not fit the model: 6 of 6"):
        load(tmp_path / "m.pth")


@pytest.mark.parametrize("strict", [False, True])
def test_weights_that_are_not_finite(tmp_path, strict):
    """One NaN makes a network label all pixels 0."""
    source = randomised()
    source[0].weight.data[2, 1] = float("nan")
    source[1].running_var[3] = float("inf")
    torch.save({"model": source.state_dict()}, tmp_path / "model.pth")
    message = "model.pth are broken: 1 values of 0.weight are NaN or infinite, and 1 other"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "model.pth", strict=strict)
