"""Published models are downloaded, checked, converted and used by name; faults leave no file."""

import hashlib
import http.server
import multiprocessing
import re
import resource
import signal
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.utils.file_io import PathManager
from PIL import Image

import ocr_panoptic
from ocr_panoptic.checkpoint import addresses, published_models
from ocr_panoptic.checkpoint.conversion import convert_weights, described_settings, shapes_of
from ocr_panoptic.checkpoint.published_models import (
    MODELS,
    SHORT_NAMES,
    PublishedModel,
    published_model,
)
from ocr_panoptic.checkpoint.reading import fetch_weights
from ocr_panoptic.checkpoint.settings import differing_settings
from ocr_panoptic.cli import call
from ocr_panoptic.config.files import load_config, quoted
from ocr_panoptic.predict.named_models import converted_config, identity_of_data
from ocr_panoptic.predict.trained_model import build_trained_model, find_model, trained_model
from support import published_networks as published
from support.conversions import image, network_input, write
from support.tiny_runs import ROOT

README = (ROOT / "README.md").read_text()
SMALL = "ocrnet_hr18s_512x512_160k_ade20k"
HRNET = "hrnet_ocr_lip_5648"


class Server(http.server.ThreadingHTTPServer):
    """A server on the loopback address that answers each request with ``content``."""

    content, length, delay = b"", None, 0.0

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.requests: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        time.sleep(self.server.delay)
        self.send_response(200 if self.server.content else 404)
        if self.server.length is not None:
            self.send_header("Content-Length", str(self.server.length))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *args):
        pass


def serve(monkeypatch, address: str) -> None:
    """Let all models have addresses below ``address``."""
    sources = {name: ("a licence", address) for name in ("mmseg", "hrnet")}
    monkeypatch.setattr(published_models, "SOURCES", sources)
    for name, model in MODELS.items():
        monkeypatch.setitem(MODELS, name, published_model(model.file, model.miou))


@pytest.fixture
def server(monkeypatch, tmp_path):
    server = Server()
    monkeypatch.setenv("FVCORE_CACHE", str(tmp_path / "cache"))
    address = f"http://127.0.0.1:{server.server_port}"
    serve(monkeypatch, address)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def publish(server, monkeypatch):
    """Return a function that puts content on the server, as the file of the model ``name``."""

    def publish(name: str, content: bytes) -> PublishedModel:
        server.content, model = content, MODELS[name]
        digest = hashlib.sha256(content).hexdigest()[:8]
        file = re.sub(r"-\w{8}\.pth$", f"-{digest}.pth", model.file)
        model = published_model(file, model.miou)
        monkeypatch.setitem(MODELS, name, model)
        return model

    return publish


def folder() -> list[str]:
    """Return the names of the files in the folder of models, without locks."""
    files = addresses.models_folder().rglob("*")
    return sorted(file.name for file in files if not file.name.endswith(".lock"))


# ------------------------------------------------------------------------ the table of 30 models


class Shapes(published.Weights):
    """Weights of a published network that take no memory."""

    def randn(self, *shape):
        return torch.empty(*shape, device="meta")


def network_of(model: PublishedModel) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    if model.network == "ResNet-101":
        return partial(published.mmseg_resnet, classes=model.data.classes)
    size = {"HRNet-W48": {"width": 48}, "HRNet-W18": {}}.get(model.network, {"small": True})
    run = {"mmseg": published.mmseg_hrnet, "hrnet": published.hrnet_ocr}[model.source]
    return partial(run, **{"small": False, **size}, classes=model.data.classes)


def shapes(model: PublishedModel) -> dict[str, torch.Tensor]:
    weights = Shapes()
    network_of(model)(weights, torch.empty(1, 3, 64, 64, device="meta"))
    return weights.tensors


KINDS: dict[str, PublishedModel] = {}
for one in MODELS.values():
    KINDS.setdefault(f"{one.source} {one.network} {one.data.title}", one)


# Kinds of one layout differ only in the number of classes.
LAYOUTS = {(m.source, m.network, "torch04" in m.file): kind for kind, m in KINDS.items()}


def test_models_of_one_kind_differ_only_in_their_training():
    for one in MODELS.values():
        kind = KINDS[f"{one.source} {one.network} {one.data.title}"]
        assert (one.data, one.parameters) == (kind.data, kind.parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_fits_its_recipe(kind):
    """Every tensor of the published network has a place; classes, sizes and parameters fit."""
    model = KINDS[kind]
    data = model.data
    weights = shapes(model)
    needed = described_settings(weights, model.source)
    cfg = converted_config(data.recipe, quoted(data.keys), needed)
    assert data.classes == cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    conversion = convert_weights(weights, model.source, shapes_of(cfg))
    assert differing_settings(cfg, conversion.expected_settings()) == []
    buffers = ("running_mean", "running_var", "num_batches_tracked", "pixel_mean", "pixel_std")
    count = sum(t.numel() for n, t in conversion.weights.items() if not n.endswith(buffers))
    assert abs(count / 1e6 - model.parameters) < 1
    identity = identity_of_data(cfg)["classes"]
    assert len({*identity["stuff_classes"]}) == len(identity["stuff_colors"]) == data.classes
    assert data.title.split()[0].lower()[:6] in f"{cfg.DATASETS.TRAIN[0]} pascal".replace("_", "-")
    wanted = {"ADE20K": 512, "PASCAL VOC 2012": 512, "Cityscapes": 0}
    if model.source == "mmseg":  # as its test pipelines
        assert wanted[data.title] == cfg.INPUT.MIN_SIZE_TEST


def test_addresses_and_digests():
    """As the model lists of both projects have them."""
    assert len(MODELS) == 30 and {*SHORT_NAMES.values()} <= {*MODELS}
    mmseg = "https://download.openmmlab.com/mmsegmentation/v0.5/ocrnet/"
    first = "ocrnet_hr18s_4xb2-40k_cityscapes-512x1024"
    assert MODELS[first].address == f"{mmseg}{first}/{first}_20230227_145026-6c052a14.pth"
    resnet = "ocrnet_r101-d8_512x1024_40k_b16_cityscapes"
    assert MODELS[resnet].address == f"{mmseg}{resnet}/{resnet}_20200723_193726-db500f80.pth"
    assert MODELS[resnet].digest == "db500f80" and MODELS[HRNET].digest == ""
    assert MODELS[HRNET].address == (
        "https://github.com/hsfzxjy/models.storage/releases/download/HRNet-OCR/"
        "hrnet_ocr_lip_5648_torch04.pth"
    )
    digests = [model.digest for model in MODELS.values() if model.source == "mmseg"]
    assert len({*digests}) == 24 and all(re.fullmatch("[0-9a-f]{8}", d) for d in digests)


def test_documents_and_command_list_models(capsys):
    """The page has a model of every network and data set, the command has all."""
    text = (ROOT / "docs/checkpoints.md").read_text()
    rows = {
        name: row for name in MODELS for row in text.splitlines() if row.startswith(f"| `{name}` |")
    }
    for name, row in rows.items():
        model = MODELS[name]
        assert row == f"| `{name}` | {model.data.title} | {model.network} | {model.miou} |"
    assert {(MODELS[name].data.title, MODELS[name].network) for name in rows} == {
        (model.data.title, model.network) for model in MODELS.values()
    }
    for short, name in SHORT_NAMES.items():
        assert f"`{short}` (`{name}`)" in text
    assert call("models", ["hr48", "voc"]) == 0
    printed = capsys.readouterr().out
    assert "ocrnet_hr48_512x512_20k_voc12aug (voc)" in printed and "hr18" not in printed
    assert call("models", ["nothing"]) == 1


# ------------------------------------------------------------------------------- use by a name


def content_of(tmp_path: Path, tensors: dict, prefix: str = "") -> bytes:
    return write(tmp_path / "published.pth", tensors, prefix).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS.values())
def test_logits_are_those_of_the_published_network(kind, publish, server, tmp_path):
    model = KINDS[kind]
    cfg = load_config(model.data.recipe, quoted(model.data.keys))
    is_abn = "torch04" in model.file  # In-Place ABN, in a DataParallel; else a FullModel
    weights, x = published.Weights(inplace_abn=is_abn), image()
    with torch.no_grad():
        expected = network_of(model)(weights, network_input(cfg, x))
    prefix = {"mmseg": "", "hrnet": "module." if is_abn else "model."}[model.source]
    model = publish(name := model.name, content_of(tmp_path, weights.tensors, prefix))
    cfg, start = trained_model(name, None, {"TEST.OPTIMIZED": "False", "MODEL.DEVICE": "cpu"})
    with torch.no_grad():
        found = build_trained_model(cfg, start).network.layers([{"image": x}])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    (request,) = server.requests
    assert model.address.endswith(request) and request.endswith(model.file)
    assert fetch_weights(name) == PathManager.get_local_path(f"ocr://{name}")
    assert len(server.requests) == 1 and model.file in folder()


@pytest.fixture(scope="module")
def small_file(tmp_path_factory) -> bytes:
    """Return a file of random weights of HRNet-W18-small for PASCAL VOC, and its network."""
    weights = published.Weights()
    with torch.no_grad():
        published.mmseg_hrnet(weights, torch.randn(1, 3, 64, 64), classes=21)
    return content_of(tmp_path_factory.mktemp("published"), weights.tensors)


VOC = "ocrnet_hr18s_512x512_20k_voc12aug"


def test_load_evaluate_and_train_by_name(publish, small_file, server, capsys, tmp_path):
    """Classes and settings come with the name; a local folder of that name is no model."""
    publish(VOC, small_file)
    model = ocr_panoptic.load(VOC, **{"MODEL.DEVICE": "cpu"})
    assert model.classes[15] == "person" and model.things == []
    assert model.config.INPUT.MIN_SIZE_TEST == 512
    result = model.predict(np.zeros((32, 48, 3), np.uint8))
    assert result.labels.shape == (32, 48)
    assert "Loaded ocrnet_hr18s_512x512_20k_voc12aug: " in capsys.readouterr().err
    assert find_model("", f"ocr://{VOC}").start.classes["stuff_classes"] == model.classes
    call("models", ["voc12"])
    assert f"{VOC}-{ocr_panoptic.__version__}.pth" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="ade2k is neither .*Did you mean ade20k?"):
        ocr_panoptic.load("ade2k")
    with pytest.raises(FileNotFoundError, match="ade20kk is neither .* Did you mean ade20k?"):
        fetch_weights("ade20kk")
    with pytest.raises(FileNotFoundError, match="There is no model ocr://nothing"):
        fetch_weights("ocr://nothing")


def test_a_file_that_a_user_puts_into_the_folder(publish, small_file, server):
    """A published file under its own name needs no server; any converted file is a model."""
    model = publish(VOC, small_file)
    addresses.models_folder().mkdir(parents=True)
    file = addresses.models_folder() / model.file
    file.write_bytes(small_file)
    converted = Path(fetch_weights(VOC))
    assert server.requests == []
    converted.rename(converted.with_name("mine.pth"))
    assert find_model("mine").cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == 21
    file.write_bytes(small_file[:-1])
    with pytest.raises(
        ValueError, match=f"but .* has .*Replace it with the file at {model.address}"
    ):
        fetch_weights(VOC)
    assert file.is_file()  # it is the user's


def test_the_first_code_of_the_readme(publish, small_file, server, tmp_path, monkeypatch):
    """In an empty folder with a photo, from a cache that has the file already."""
    monkeypatch.setitem(addresses.MODEL_NAMES, "ade20k", VOC)
    fetch_weights(publish(VOC, small_file).name)
    server.shutdown()
    (code,) = re.findall(r"^    import ocr_panoptic\n(?:    .*\n)+", README, re.M)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((32, 48, 3), 99, np.uint8)).save("photo.jpg")
    exec(textwrap.dedent(code), {})
    assert Image.open("drawn.png").size == (48, 32)


OWN = [f"Custom-SemanticSegmentation/ocr_{n}" for n in ("HRNet_W48_s4", "HRNet_W18_s4")]
OWN += [f"Custom-SemanticSegmentation/ocr_{n}" for n in ("HRNet_W18_small_s4", "R_101_d8")]


@pytest.mark.parametrize("config", OWN)
def test_own_data_configs_fit_the_models_that_they_start_from(config):
    """The network has exactly the tensors, and the settings are those that the weights need."""
    cfg = load_config(config)
    model = MODELS[cfg.MODEL.WEIGHTS.removeprefix(addresses.PREFIX)]
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = model.data.classes
    weights = shapes(model)
    conversion = convert_weights(weights, model.source, shapes_of(cfg))
    assert differing_settings(cfg, conversion.expected_settings()) == []


@pytest.mark.slow
def test_own_data_start_from_a_model(publish, small_file, server, tmp_path):
    """Backbone and context are the model's, and so are the rows of classes of the same name."""
    publish(VOC, small_file)
    for folder, size in (("images", (64, 64, 3)), ("labels", (64, 64))):
        (tmp_path / folder).mkdir()
        for name in "ab":
            pixels = np.random.default_rng(0).integers(0, 3, size, np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{name}.png")
    data, output = tmp_path / "own.yaml", tmp_path / "run"
    split = "{images: images, labels: labels}"
    data.write_text(f"name: own\nsemantic: {{train: {split}}}\nclasses: [person, moon, bus]\n")
    keys = {"SOLVER.MAX_ITER": 1, "SOLVER.BASE_LR": 1e-12, "SOLVER.IMS_PER_BATCH": 2}
    keys |= {"MODEL.WEIGHTS": VOC, "MODEL.DEVICE": "cpu", "TEST.EVAL_PERIOD": 0}
    keys |= {"INPUT.CROP.SIZE": [64, 64], "DATALOADER.NUM_WORKERS": 0}
    ocr_panoptic.train(OWN[2], data=data, output=output, **keys)
    log = (output / "log.txt").read_text()
    assert "classifier rows loaded for person, bus; new, random rows for moon" in log
    trained, before = (
        torch.load(f)["model"] for f in (output / "model_final.pth", fetch_weights(VOC))
    )
    for name in ("coarse_predictor", "refined_predictor"):
        rows = trained[f"sem_seg_head.{name}.weight"]
        for own, theirs in ((0, 15), (2, 6)):
            assert torch.allclose(rows[own], before[f"sem_seg_head.{name}.weight"][theirs])
    for name in ("sem_seg_head.context.g.weight", "backbone.body.conv1.weight"):
        assert torch.allclose(trained[name], before[name])


# --------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "name, content, length, message",
    [
        (VOC, b"<!DOCTYPE html>", None, "must have the SHA-256 02b04fcb.*is a web page .15 b"),
        (VOC, b"other weights", None, "must have the SHA-256 02b04fcb.*has 53959fa1"),
        (VOC, b"", None, "could not be downloaded from .*HTTP Error 404"),
        (VOC, b"half", 8, "could not be downloaded from .*retrieval incomplete: got only 4 out of"),
        (HRNET, b"<html>", None, "cannot be used .its file is not a checkpoint .*a web page"),
        (HRNET, b"PK half of a file", None, "cannot be used .its file is not a checkpoint or is"),
    ],
)
def test_a_download_that_fails(name, content, length, message, server):
    server.content, server.length = content, length
    with pytest.raises((FileNotFoundError, ValueError), match=message) as error:
        fetch_weights(name)
    text = str(error.value)
    assert "\n" not in text and str(addresses.models_folder()) in text
    assert MODELS[name].address in text and folder() == []


def test_offline(server, monkeypatch):
    serve(monkeypatch, "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(FileNotFoundError, match="(?s)could not be downloaded .*refused"):
        fetch_weights(VOC)
    assert folder() == []


@pytest.mark.parametrize("part", [0.5, 1.5])  # the download fills the disk, or the conversion
def test_full_disk(part, publish, small_file, server):
    publish(VOC, small_file)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = len(small_file)
    try:  # acts like a full disk
        with pytest.MonkeyPatch.context() as patch:
            if part > 1:
                patch.setattr(torch, "save", _save_to_full_disk)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(part * size), limits[1]))
            with pytest.raises((FileNotFoundError, ValueError), match="free .*space|space on"):
                fetch_weights(VOC)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert folder() == []
    fetch_weights(VOC)


def _save_to_full_disk(content, path):
    Path(path).write_bytes(b"half")
    raise RuntimeError("[enforce fail at inline_container.cc:595] . unexpected pos 64 vs 0")


def test_two_processes_download_once(publish, small_file, server):
    publish(VOC, small_file)
    server.delay = 0.5
    with multiprocessing.get_context("fork").Pool(2) as pool:
        files = pool.map(fetch_weights, [VOC, VOC])
    assert files[0] == files[1] and len(server.requests) == 1 and Path(files[0]).is_file()
