"""Safe and checked loading of weights, the fit to a model, and classifier rows by class name."""

import os
import pickle
import re
from urllib.error import URLError

import numpy as np
import pytest
import torch
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.utils.file_io import PathManager
from fvcore.common.checkpoint import PeriodicCheckpointer, _IncompatibleKeys
from iopath.common.file_io import PathHandler
from iopath.common.file_io import PathManager as PathManagerBase
from safetensors.torch import save_file
from torch import nn

from ocr_panoptic.checkpoint import Demands, SafeCheckpointer
from ocr_panoptic.checkpoint.class_rows import ZOO_WEIGHTS, rows_by_name, zoo_classes
from ocr_panoptic.checkpoint.matching import Fit, weights_for
from ocr_panoptic.checkpoint.start import read_start
from ocr_panoptic.config.files import load_config

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


def load(path, trust_pickle=False, **demands) -> nn.Module:
    model, rules = make_model(), Demands(**demands)
    SafeCheckpointer(model, trust_pickle=trust_pickle, demands=rules).load(str(path))
    return model


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_model_zoo_pickles_load_without_trust(tmp_path, protocol):
    """NumPy 1, here with protocol 0, wrote numpy.core.multiarray; NumPy 2 writes numpy._core."""
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
    "safetensors": lambda data, path: save_file(data["model"], path),
}


@pytest.mark.parametrize("kind", ["pkl", "pth", "old pth"])
def test_code_in_a_file_is_refused_unless_trusted(tmp_path, kind):
    """The message names the code, and does not repeat torch's advice to disable its protection."""
    target, path = make_model(), tmp_path / f"weights.{kind.split()[-1]}"
    state = {k: v.numpy() if kind == "pkl" else v for k, v in randomised().state_dict().items()}
    FILES[kind]({"model": state, "__author__": "somebody", "extra": Payload()}, path)
    executed.clear()
    with pytest.raises(ValueError, match="MODEL.TRUST_PICKLE True") as error:
        SafeCheckpointer(target).load(str(path))
    assert f"{path.name} is a pickle that wants to run {__name__}.run, which" in str(error.value)
    assert "weights_only" not in str(error.value) and "PyTorch" not in str(error.value)
    assert executed == []
    assert_equal_state(make_model(), target)
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


def test_names_are_matched_as_in_detectron2(tmp_path):
    """Detectron2's checkpointer reads the same file, from the same address of a new kind."""

    class Handler(PathHandler):
        def _get_supported_prefixes(self) -> list[str]:
            return ["own://"]

        def _get_local_path(self, path: str, **kwargs: object) -> str:
            return str(tmp_path / path.removeprefix("own://"))

    manager = PathManagerBase()
    manager.register_handler(Handler())
    weights = {"weight": torch.rand(4, 3, 1, 1), "a.1.bias": torch.rand(4), "unused": torch.ones(9)}
    torch.save({"model": weights}, tmp_path / "m.pth")
    found = {}
    for kind in (SafeCheckpointer, DetectionCheckpointer):
        checkpointer = kind(found.setdefault(kind, nn.ModuleDict({"net": make_model()})))
        checkpointer.path_manager = manager
        checkpointer.load("own://m.pth?matching_heuristics=True")
    assert_equal_state(*found.values())
    assert torch.equal(found[SafeCheckpointer]["net"][0].weight, weights["weight"])
    with pytest.raises(ValueError, match=r"ends in \?token=1; only"):
        load(f"{tmp_path}/m.pth?token=1")
    with pytest.raises(ValueError, match="is own://folder; expected a folder on this machine"):
        SafeCheckpointer(make_model(), "own://folder")


def test_checkpoints_are_kept_and_resumed_as_in_detectron2(tmp_path):
    torch.save({"model": make_model().state_dict()}, tmp_path / "first.pth")
    for kind in (SafeCheckpointer, DetectionCheckpointer):
        folder, model, other = str(tmp_path / kind.__name__), make_model(), nn.Linear(1, 1)
        os.makedirs(folder)
        checkpointer = kind(model, folder, other=other)
        assert not checkpointer.has_checkpoint()
        assert checkpointer.resume_or_load(str(tmp_path / "first.pth")) == {}
        periodic = PeriodicCheckpointer(checkpointer, 2, 7, max_to_keep=1, file_prefix="own")
        for iteration in range(7):
            nn.init.constant_(other.bias, iteration)
            periodic.step(iteration, note="a")
        assert checkpointer.has_checkpoint()
        assert sorted(map(os.path.basename, checkpointer.get_all_checkpoint_files())) == [
            "own_0000005.pth",
            "own_final.pth",
        ]
        nn.init.zeros_(other.bias)
        assert checkpointer.resume_or_load("") == {"iteration": 6, "note": "a"}
        assert other.bias.item() == 6
        assert checkpointer.resume_or_load("", resume=False) == {}
        kind(model, folder, save_to_disk=False).save("other")
        assert not os.path.exists(f"{folder}/other.pth")


def test_pycls_files_load_as_in_detectron2(tmp_path):
    torch.save({"epoch": 3, "model_state": randomised().state_dict()}, tmp_path / "m.pyth")
    assert_equal_state(randomised(), load(tmp_path / "m.pyth"))


def test_matching_leaves_model_and_content_unchanged():
    """Each step is seen in the result: channels, names, rows, settings."""
    model = nn.ModuleDict({"sem_seg_head": nn.ModuleDict({"predictor": nn.Conv2d(2, 3, 1)})})
    name = "sem_seg_head.predictor.bias"
    nn.init.zeros_(model["sem_seg_head"]["predictor"].bias)
    record = {"source": "a", "file": "b", "settings": {"MODEL.X": 1}}
    content = {"model": {name: torch.tensor([1.0, 2, 3])}, "identity": {"classes": THEIRS}}
    content["conversion"] = record
    matched = weights_for(model, content, "m.pth", Demands(classes=OURS))
    assert matched.weights[name].tolist() == [1, 0, 2]
    assert (matched.kept, matched.new) == (["sky"], ["grass"])
    assert matched.record == record and not matched.is_renamed
    assert content["model"][name].tolist() == [1, 2, 3]
    assert not model.state_dict()[name].any()


DAMAGES = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "page": lambda whole: b"<!DOCTYPE html><html>Not found</html>",
    "bytes": lambda whole: b"\x80\x02" + bytes(range(256)),
    "text": lambda whole: b"version https://git-lfs.github.com/spec/v1",
}


@pytest.mark.parametrize("suffix", ["pkl", "pth", "safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_asks_for_another_download(tmp_path, suffix, damage):
    path, state = tmp_path / f"m.{suffix}", randomised().state_dict()
    state = {k: v.numpy() if suffix == "pkl" else v for k, v in state.items()}
    FILES[suffix]({"model": state, "__author__": "zoo"}, path)
    load(path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(ValueError, match="Download or copy it again") as error:
        load(path)
    message, size = str(error.value), path.stat().st_size
    assert f"m.{suffix} is not a checkpoint or is incomplete ({size} bytes" in message
    assert ("a web page" in message) is (damage == "page")
    assert not re.search("TRUST_PICKLE|weights_only|\n", message)


def test_changed_bytes_are_refused(tmp_path):
    path, values = tmp_path / "m.pth", torch.arange(64.0)
    torch.save({"model": {"a": values}}, path)
    path.write_bytes(path.read_bytes().replace(values.numpy().tobytes(), b"x" * 256))
    with pytest.raises(ValueError, match="does not match its checksum"):
        load(path)
    with pytest.raises(ValueError, match="does not match its checksum"):
        SafeCheckpointer(make_model()).load(str(path), content=read_start(str(path)).content)


def test_the_content_of_a_start_is_not_read_again(tmp_path, monkeypatch):
    """Its tensors stay in the file, so another process gets none."""
    torch.save({"model": randomised().state_dict()}, tmp_path / "m.pth")
    start, model = read_start(str(tmp_path / "m.pth")), make_model()
    monkeypatch.delattr(torch, "load")
    assert pickle.loads(pickle.dumps(start)) == start
    assert pickle.loads(pickle.dumps(start)).content is None
    SafeCheckpointer(model).load(start.weights, content=start.take_content())
    assert_equal_state(randomised(), model)
    assert start.content is None


RECORD, TENSOR = "m.pth: the metadata that ocr-panoptic convert wrote are", torch.ones(1)


@pytest.mark.parametrize(
    "content, message",
    [
        ({"model": {"a": TENSOR}, "conversion": 7}, RECORD),
        ({"model": {"a": TENSOR}, "conversion": {"source": "a", "file": "b"}}, RECORD),
        ([1, 2], "it contains a list instead of a state_dict"),
        ({"model": [1, 2]}, "it contains no named tensors"),
        ({}, "it contains no named tensors"),
        ({"epoch": 3, "arch": "resnet50"}, "epoch is a int"),
        ({"model": {"a": TENSOR, "b": None}}, "b is a NoneType"),
        ({"model": {7: TENSOR}}, "7 is a Tensor"),
    ],
)
def test_a_file_without_plain_tensors(tmp_path, content, message):
    torch.save(content, tmp_path / "m.pth")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "m.pth")
    save_file({"a": TENSOR}, tmp_path / "m.safetensors", {"conversion": "no JSON"})
    with pytest.raises(ValueError, match="m.safetensors: the metadata that"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    "change, strict, fault",
    [
        ({"0.bias": None}, True, "0.bias: missing from the file"),
        ({"1.running_mean": None}, True, "1.running_mean: missing from the file"),
        ({"0.weight": torch.zeros(9, 3, 1, 1)}, True, r"0.weight: \(9, 3, 1, 1\) .*\(4, 3, 1, 1\)"),
        (dict.fromkeys(make_model().state_dict()), False, "do not fit the model: 6 of 6"),
        # A single NaN makes a network label all pixels 0.
        (
            {"0.bias": torch.tensor([1, float("nan"), 0, 0]), "1.running_var": torch.ones(4) / 0},
            False,
            r"m.pth are broken: 0.bias has 1 NaN or infinite value\(s\); 1 more",
        ),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, change, strict, fault):
    state = {**randomised().state_dict(), "other.weight": torch.zeros(3), **change}
    torch.save({"model": {k: v for k, v in state.items() if v is not None}}, tmp_path / "m.pth")
    with pytest.raises(ValueError, match=fault):
        load(tmp_path / "m.pth", strict=strict)


def test_another_shape_is_in_the_summary_of_a_training(tmp_path):
    """Training on data with other classes keeps everything except the classifiers."""
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
    started, found = make_model().state_dict(), checkpointer.model.state_dict()
    for key, value in {**state, "0.weight": started["0.weight"]}.items():
        assert torch.equal(found[key], value), key
    assert (
        SafeCheckpointer(make_model()).summary()
        == "No weights file; the model starts from random weights"
    )


def fit_of(found: dict[str, tuple], expected: dict[str, tuple]) -> Fit:
    misshapen = [
        (n, found[n], shape) for n, shape in expected.items() if found.get(n, shape) != shape
    ]
    missing, unexpected = expected.keys() - found.keys(), [n for n in found if n not in expected]
    return Fit(expected, _IncompatibleKeys([*missing], unexpected, misshapen))


def test_the_fit_of_four_tensors():
    """By hand: one is missing, one misshapen, one too many; counters do not count."""
    model = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (4,), "b.bias": (4,)}
    model |= {"pixel_mean": (3,), "b.num_batches_tracked": ()}
    file = {"a.weight": (2, 3), "b.weight": (5,), "b.bias": (4,), "c.bias": (1,)}
    fit = fit_of(file | {"c.num_batches_tracked": ()}, model)
    assert fit.names == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert fit.faults == {
        "a.bias": "missing from the file",
        "b.weight": "(5,) in the file, (4,) in the model",
    }
    assert fit.unused == ["c.bias"]
    assert fit.listing(1).splitlines()[1:] == ["  a.bias: missing from the file", "  ..."]
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


@pytest.mark.parametrize(
    "fills, share",
    [("backbone", ""), ("other classes", ""), ("four tensors", "12.5%"), ("head", "0.0%")],
)
def test_weights_of_another_model_are_refused_in_training(tmp_path, fills, share):
    """The share is of 8 * 4 tensors, without running statistics."""

    def make() -> nn.Module:
        body = [nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) for _ in range(8)]
        return nn.ModuleDict({"backbone": nn.Sequential(*body), "head": nn.Conv2d(4, 5, 1)})

    weights, path = make().state_dict(), str(tmp_path / "m.pth")
    body, head = ({k: v for k, v in weights.items() if p in k} for p in ("backbone", "head"))
    others = {name: tensor.repeat_interleave(2, 0) for name, tensor in head.items()}
    four = dict([*body.items()][:4])
    kinds = {"backbone": body, "other classes": body | others, "four tensors": four, "head": head}
    torch.save({"model": kinds[fills]}, path)
    checkpointer = SafeCheckpointer(make(), demands=Demands(min_share=0.9))
    if not share:
        checkpointer.load(path)
        assert "head " in checkpointer.summary() and "weight, bias" in checkpointer.summary()
        return
    with pytest.raises(
        ValueError, match=f"{share} of the backbone; expected at least 90%"
    ) as error:
        checkpointer.load(path)
    advice = re.search(r"set (MODEL\S+) (\S+) to use", str(error.value)).groups()
    min_share = load_config("", list(advice)).MODEL.WEIGHTS_MIN_SHARE
    SafeCheckpointer(make(), demands=Demands(min_share=min_share)).load(path)


def test_too_little_memory_is_not_reported_as_damage(tmp_path, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    torch.save({}, tmp_path / "a.pth")
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        load(tmp_path / "a.pth")


THEIRS = {"thing_classes": ["cat", "dog"], "stuff_classes": ["things", "sky, heaven", "sea"]}
OURS = {"thing_classes": ["cow", "Dog", "hen"], "stuff_classes": ["things", "grass", "sky"]}
BOX, MASK = "roi_heads.box_predictor", "roi_heads.mask_head.predictor"


def test_rows_are_matched_by_class_name():
    weights = {
        f"{BOX}.cls_score.bias": np.array([1.0, 2, 9], np.float32),  # the last row is background
        f"{BOX}.bbox_pred.weight": torch.arange(1.0, 9)[:, None],
        f"{MASK}.weight": torch.tensor([1.0, 2])[:, None, None, None],
        "sem_seg_head.predictor.bias": torch.tensor([7.0, 1, 2]),
        "backbone.weight": torch.ones(2),
    }
    own = {
        f"{BOX}.cls_score.bias": torch.zeros(4),
        f"{BOX}.bbox_pred.weight": torch.zeros(12, 1),
        f"{MASK}.weight": torch.zeros(3, 1, 1, 1),
        "sem_seg_head.predictor.bias": torch.full((3,), -1.0),  # the same shape
        "sem_seg_head.refined_predictor.bias": torch.zeros(3),
        "backbone.weight": torch.zeros(2),
    }
    found, kept, new = rows_by_name(weights, own, THEIRS, OURS)
    assert found.keys() == weights.keys()
    assert found[f"{BOX}.cls_score.bias"].tolist() == [0, 2, 0, 9]
    assert found[f"{BOX}.bbox_pred.weight"].flatten().tolist() == [0] * 4 + [5, 6, 7, 8] + [0] * 4
    assert found[f"{MASK}.weight"].flatten().tolist() == [0, 2, 0]
    assert found["sem_seg_head.predictor.bias"].tolist() == [7, -1, 1]
    assert found["backbone.weight"] is weights["backbone.weight"]
    assert (kept, new) == (["Dog", "sky"], ["cow", "hen", "grass"])
    # Classes may differ only in the case of a letter.
    weights, own = ({"sem_seg_head.predictor.bias": torch.tensor(v)} for v in ([7, 1, 2], [0] * 3))
    theirs, ours = ({"stuff_classes": ["things", *letters]} for letters in ("Aa", "aA"))
    found, *_ = rows_by_name(weights, own, theirs, ours)
    assert [*found.values()][0].tolist() == [7, 2, 1]
    # Rows that all classes share stay.
    weights = {f"{BOX}.bbox_pred.weight": torch.ones(4, 1), f"{MASK}.weight": torch.ones(1, 1)}
    own = {name: torch.zeros_like(value) for name, value in weights.items()}
    assert rows_by_name(weights, own, THEIRS, OURS) == (weights, [], [])


@pytest.mark.parametrize("by_class, rows", [(True, [5, 0, 5]), (False, [5, 5, 5])])
def test_a_training_keeps_the_rows_of_shared_classes(tmp_path, by_class, rows):
    head = nn.ModuleDict({"predictor": nn.Conv2d(2, 3, 1)})
    nn.init.zeros_(head["predictor"].bias)
    weights = {f"sem_seg_head.{k}": torch.full_like(v, 5.0) for k, v in head.state_dict().items()}
    torch.save({"model": weights, "identity": {"classes": THEIRS}}, tmp_path / "model.pth")
    model = nn.ModuleDict({"sem_seg_head": head})
    demands = Demands(classes=OURS if by_class else None)
    checkpointer = SafeCheckpointer(model, demands=demands)
    checkpointer.load(str(tmp_path / "model.pth"))
    assert head["predictor"].bias.tolist() == rows
    said = "classifier rows loaded for sky; new, random rows for grass"
    assert (said in checkpointer.summary()) is by_class


def test_the_zoos_files_know_cocos_classes():
    (file, *_) = ZOO_WEIGHTS.values()
    found = zoo_classes(f"downloads/{file.rpartition('/')[2]}")
    assert (len(found["thing_classes"]), found["stuff_classes"][0]) == (80, "things")
    assert {"person", "sky"} < {*found["thing_classes"], *found["stuff_classes"]}
    assert zoo_classes("model_final.pth") is None
