"""Damaged and hostile files: a message or success, no traceback, no hang, no code that is run.

Seeded and bounded. OCR_PANOPTIC_FUZZ_TRIALS=5000 makes more trials with each kind of file than the
100 of every day, OCR_PANOPTIC_FUZZ_SEED=7 makes others.
"""

import copy
import io
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from PIL import Image
from safetensors.torch import save_file

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, write_data_file
from ocr_panoptic.data.index import index_file
from ocr_panoptic.data.register import register_data_files
from ocr_panoptic.engine import load_config, run_claim
from ocr_panoptic.engine.config_checks import check_values
from ocr_panoptic.engine.resume import (
    continued_state,
    difference_table,
    find_checkpoint,
    position_after,
)
from ocr_panoptic.engine.training_state import continued_optimizer
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.labels import read_label_png
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.formats.run_folder import read_evaluation, read_training_log
from support.fuzz import breach, mutated_bytes, mutated_json, mutated_png, mutated_tree, run_trials

TRIALS = int(os.getenv("OCR_PANOPTIC_FUZZ_TRIALS", "100"))
# Of each kind of file: thirteen end within a minute on the slowest machine.
SECONDS = float("inf") if "OCR_PANOPTIC_FUZZ_TRIALS" in os.environ else 5
SEED = int(os.getenv("OCR_PANOPTIC_FUZZ_SEED", "0"))

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hostile_files")]


def breaches(tmp_path: Path, trial: Callable[[random.Random], str | None], share: float = 1) -> str:
    """Return what trials found, a text for each kind; "" where that is nothing."""
    found = run_trials(max(1, int(TRIALS * share)), SEED, trial, tmp_path / "canary", SECONDS)
    return "\n\n".join(found.values())


class Hostile:
    """A pickle of it runs a command when it is read."""

    def __reduce__(self):
        return os.system, ("touch canary",)


ARRAYS = Path(__file__).parent / "array_files"


def saved(image: Image.Image, format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


NOISE = np.random.default_rng(0).integers(0, 256, (12, 17, 3), np.uint8)
PICTURES = [
    *(saved(Image.fromarray(NOISE), f) for f in ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")),
    saved(Image.fromarray(NOISE[..., 0].astype(np.uint16) * 257), "PNG"),
    saved(Image.fromarray(NOISE).quantize(7), "PNG"),
    saved(Image.fromarray(NOISE[..., 0] % 3), "PNG"),
    saved(Image.fromarray(NOISE[..., 0] > 99), "PNG"),
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(canary) (w) file\n%%EOF\n",
]


def mutated_picture(rng: random.Random) -> bytes:
    data = rng.choice(PICTURES)
    return (mutated_png if data.startswith(b"\x89PNG") else mutated_bytes)(data, rng)


@pytest.mark.parametrize("read", [read_picture, read_label_png, read_panoptic_png])
def test_pictures(tmp_path, read):
    path = tmp_path / "a.png"

    def trial(rng):
        path.write_bytes(mutated_picture(rng))
        return breach(lambda: read(path), tmp_path, (str(path),))

    assert not breaches(tmp_path, trial)


@pytest.mark.parametrize("suffix", [".npy", ".tif"])
def test_arrays(tmp_path, suffix):
    """Images of four channels that NumPy and libvips read."""
    seeds = [path.read_bytes() for path in ARRAYS.glob("*_4.tif")]
    if suffix == ".npy":
        seeds = [array_file(NOISE), array_file(NOISE[..., [0, 1, 2, 0]] * 0.5)]
        seeds.append(array_file(np.array([Hostile()]), allow_pickle=True))
    path = tmp_path / f"a{suffix}"

    def trial(rng):
        path.write_bytes(mutated_bytes(rng.choice(seeds), rng))
        return breach(lambda: read_picture(path, channels=4), tmp_path, (str(path),))

    assert not breaches(tmp_path, trial)


def array_file(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.fixture
def raw_panoptic(tmp_path) -> PanopticSplit:
    """Two images: a thing and a stuff segment each."""
    raw = PanopticSplit(
        tmp_path / "a/images", tmp_path / "a/panoptic.json", tmp_path / "a/panoptic"
    )
    raw.images.mkdir(parents=True)
    raw.segments.mkdir()
    images, annotations = [], []
    for number in (1, 2):
        Image.fromarray(NOISE).save(raw.images / f"{number}.png")
        ids = np.zeros((12, 17, 3), np.uint8)
        ids[:, :9, 0], ids[:, 9:16, 0] = 1, 2
        Image.fromarray(ids).save(raw.segments / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": 12, "width": 17})
        segments = [
            {"id": 1, "category_id": 1, "area": 108, "bbox": [0, 0, 9, 12], "iscrowd": 0},
            {"id": 2, "category_id": 7, "area": 84, "bbox": [9, 0, 7, 12], "iscrowd": 0},
        ]
        annotations.append(
            {"image_id": number, "file_name": f"{number}.png", "segments_info": segments}
        )
    categories = [
        {"id": 1, "name": "disc", "isthing": 1, "color": [255, 0, 0]},
        {"id": 7, "name": "sky", "isthing": 0, "color": [0, 0, 255]},
    ]
    content = {"images": images, "annotations": annotations, "categories": categories}
    raw.annotations.write_text(json.dumps(content))
    return raw


@pytest.fixture
def raw_semantic(tmp_path) -> tuple[Path, SemanticSplit]:
    raw = SemanticSplit(tmp_path / "b/images", tmp_path / "b/labels")
    raw.images.mkdir(parents=True)
    raw.labels.mkdir()
    Image.fromarray(NOISE).save(raw.images / "1.png")
    Image.fromarray(NOISE[..., 0] % 3).save(raw.labels / "1.png")
    classes = tmp_path / "b/classes.json"
    entries = [{"name": n, "color": [i, 0, 0], "labels": [i]} for i, n in enumerate("abc")]
    content = {"classes": entries, "ignore": [255], "flip_pairs": [["a", "b"]]}
    classes.write_text(json.dumps(content))
    return classes, raw


def mutate_one(files: list[Path], rng: random.Random) -> Callable[[], None]:
    """Mutate one of the files; returns what brings it back."""
    path = rng.choice(files)
    original = path.read_bytes()
    mutate = mutated_png if path.suffix == ".png" else mutated_json
    path.write_bytes(mutate(original, rng))
    return lambda: path.write_bytes(original)


def check_mutations(
    tmp_path: Path, data_file: Path, files: list[Path], names: tuple[str, ...]
) -> None:
    def trial(rng):
        restore = mutate_one(files, rng)
        result = breach(lambda: check_data([data_file], workers=1), tmp_path, names)
        restore()
        return result

    assert not breaches(tmp_path, trial)


def test_panoptic_data(tmp_path, raw_panoptic, clean_catalog):
    """All of it is used or none, whatever is wrong."""
    images, pngs = raw_panoptic.images, raw_panoptic.segments
    file = tmp_path / "x.yaml"
    write_data_file(file, "x", {"train": raw_panoptic})
    files = [raw_panoptic.annotations] * 3 + [images / "1.png", pngs / "1.png"]
    check_mutations(tmp_path, file, files, (str(raw_panoptic.annotations), str(images), str(pngs)))


def test_semantic_data(tmp_path, raw_semantic, clean_catalog):
    classes, raw = raw_semantic
    file = tmp_path / "x.yaml"
    write_data_file(file, "x", {"train": raw}, classes=str(classes))
    files = [classes] * 3 + [raw.images / "1.png", raw.labels / "1.png"]
    check_mutations(tmp_path, file, files, (str(classes), str(raw.images), str(raw.labels)))


def test_data_files(tmp_path, raw_panoptic, raw_semantic, clean_catalog):
    files = [tmp_path / "x.yaml", tmp_path / "y.yaml"]
    write_data_file(files[0], "x", {"train": raw_panoptic})
    write_data_file(files[1], "y", {"train": raw_semantic[1]}, classes=["a", "b", "c"])

    def trial(rng):
        path = rng.choice(files)
        original = path.read_bytes()
        path.write_bytes(mutated_bytes(original, rng))
        # A changed path is another file's name.
        known = (str(tmp_path), "not found", "can't encode")
        result = breach(lambda: check_data([path], workers=1), tmp_path / "elsewhere", known)
        path.write_bytes(original)
        return result

    assert not breaches(tmp_path, trial)


def test_indices(tmp_path, raw_panoptic, clean_catalog):
    """A damaged one is made anew, or named."""
    write_data_file(tmp_path / "x.yaml", "x", {"train": raw_panoptic})
    register_data_files([tmp_path / "x.yaml"])
    check_data([tmp_path / "x.yaml"], workers=1)
    path = index_file(DatasetCatalog["x_train"])
    original = path.read_bytes()

    def read():
        check_data([tmp_path / "x.yaml"], workers=1)
        assert len(DatasetCatalog.get("x_train")) == 2

    def trial(rng):
        path.write_bytes(mutated_bytes(original, rng))
        return breach(read, tmp_path / "elsewhere", (str(path),))

    assert not breaches(tmp_path, trial)


YAML_COMMAND = '!!python/object/apply:os.system ["touch canary"]'


def mutated_yaml(tree: object, rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return f"_BASE_: {YAML_COMMAND}\nx: {YAML_COMMAND}\n".encode()
    if rng.random() < 0.4:
        return mutated_bytes(yaml.safe_dump(tree).encode(), rng)
    return yaml.dump(mutated_tree(tree, rng)).encode("utf-8", "surrogatepass")


def test_configs(tmp_path):
    path = tmp_path / "config.yaml"
    (tmp_path / "base.yaml").write_text("SOLVER: {BASE_LR: 0.1}")
    tree = {
        "_BASE_": "base.yaml",
        "MODEL": {"META_ARCHITECTURE": "PanopticFPN", "CONTEXT": {"NAME": "OCR"}, "MASK_ON": True},
        "SOLVER": {"STEPS": [1, 2], "MAX_ITER": 3, "BASE_LR": 0.2},
        "DATASETS": {"TRAIN": ["a"], "TEST": []},
        "INPUT": {"CROP": {"SIZE": [2, 3]}, "MIN_SIZE_TRAIN": [4]},
    }

    def trial(rng):
        path.write_bytes(mutated_yaml(tree, rng))
        # Of some values the message names the key alone.
        names = (str(path), "with characters that cannot be printed", "; it is ")
        return breach(lambda: check_values(load_config(str(path), [])), tmp_path, names)

    assert not breaches(tmp_path, trial)


def checkpoint_files(folder: Path) -> list[Path]:
    """Files of every kind that is read, good and hostile."""
    weights = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.tensor([0.5, -1])}
    arrays = {name: value.numpy() for name, value in weights.items()}
    torch.save({"model": weights, "iteration": 3}, folder / "a.pth")
    torch.save({"model": weights}, folder / "b.pth", _use_new_zipfile_serialization=False)
    torch.save({"model_state": weights}, folder / "c.pyth")
    save_file(weights, folder / "d.safetensors")
    (folder / "e.pkl").write_bytes(pickle.dumps({"model": arrays, "__author__": "x"}, protocol=2))
    torch.save({"model": weights, "x": Hostile()}, folder / "f.pth")
    torch.save(
        {"model": weights, "x": Hostile()}, folder / "g.pth", _use_new_zipfile_serialization=False
    )
    (folder / "h.pkl").write_bytes(pickle.dumps({"model": arrays, "x": Hostile()}))
    (folder / "i.pth").write_bytes(pickle.dumps(Hostile()))
    return sorted(folder.iterdir())


def test_checkpoints(tmp_path):
    folder = tmp_path / "seeds"
    folder.mkdir()
    files = checkpoint_files(folder)
    model = torch.nn.Linear(3, 2)

    def trial(rng):
        source = rng.choice(files)
        path = tmp_path / f"weights{source.suffix}"
        data = source.read_bytes()
        path.write_bytes(data if rng.random() < 0.1 else mutated_bytes(data, rng))
        return breach(
            lambda: SafeCheckpointer(model, str(tmp_path)).load(str(path)), tmp_path, (str(path),)
        )

    assert not breaches(tmp_path, trial, share=2)


def test_states_of_a_training(tmp_path):
    """The states that --resume reads."""
    path = tmp_path / "model_final.pth"
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    solver = {"IMS_PER_BATCH": 2, "REFERENCE_WORLD_SIZE": 0, "MAX_ITER": 9, "OPTIMIZER": "AdamW"}
    cfg = CfgNode({"MODEL": {"TRUST_PICKLE": False}, "SOLVER": solver})
    scaler = torch.amp.GradScaler("cpu").state_dict()
    tree = {
        **{"iteration": 3, "images": 8, "seed": 3, "processes": 1},
        **{"config": cfg.dump(), "parameters": ["weight", "bias"]},
        "_trainer": {
            "iteration": 3,
            "optimizer": {**optimizer.state_dict(), "state": {}},
            "grad_scaler": scaler,
        },
    }
    others = torch.zeros(2), torch.zeros(3, 2), torch.tensor(1.0), 1.0, None, "x"

    def read():
        state = continued_state(cfg, str(path), model)
        position_after(cfg, state)
        difference_table(cfg, state)
        saved, names = state["_trainer"], state["parameters"]
        optimizer.load_state_dict(
            continued_optimizer(saved["optimizer"], names, ["weight", "bias"], optimizer)
        )
        optimizer.step()
        if "trained_weights" in state:
            model.load_state_dict(state["trained_weights"])
        if saved.get("grad_scaler"):
            torch.amp.GradScaler("cpu").load_state_dict(saved["grad_scaler"])

    def trial(rng):
        state = mutated_tree(tree, rng)
        if rng.random() < 0.3 and isinstance(state, dict):
            state["config"] = mutated_bytes(cfg.dump().encode(), rng).decode(errors="replace")
        if rng.random() < 0.5:  # one of the tensors is another, or none
            state = copy.deepcopy(tree)
            momenta = copy.deepcopy(optimizer.state_dict()["state"])
            weights = dict(model.state_dict())
            damaged = rng.choice([weights, *momenta.values()])
            damaged[rng.choice(list(damaged))] = rng.choice(others)
            state["_trainer"]["optimizer"]["state"] = momenta
            state["trained_weights"] = weights
        torch.save({"model": model.state_dict(), "trainer": state}, path)
        return breach(read, tmp_path, (str(path), "The checkpoint"))

    assert not breaches(tmp_path, trial)


def test_what_a_run_leaves_for_the_next(tmp_path, monkeypatch):
    """training.lock and last_checkpoint."""
    monkeypatch.setattr(run_claim, "WATCH", 0)
    torch.save({}, tmp_path / "model_final.pth")
    claim = {"host": "here", "pid": 3, "begun": "2020-01-01"}
    lock, last = tmp_path / run_claim.FILE, tmp_path / "last_checkpoint"

    def read():
        run_claim.claim(tmp_path)
        run_claim.release(tmp_path)

    def trial(rng):
        if rng.random() < 0.5:
            lock.write_bytes(mutated_json(json.dumps(claim).encode(), rng))
            return breach(read, tmp_path, (str(lock),))
        last.write_bytes(mutated_bytes(b"model_final.pth", rng))
        return breach(lambda: find_checkpoint(str(tmp_path), True), tmp_path, (str(tmp_path),))

    assert not breaches(tmp_path, trial)


def test_results_of_a_run(tmp_path):
    path = tmp_path / "metrics.json"
    results = {"run": {"seed": 1}, "sem_seg": {"mIoU": 3.5, "IoU-a": 2.0}}
    log = b"".join(b'{"iteration": %d, "total_loss": 0.5}\n' % number for number in range(5))

    def trial(rng):
        if rng.random() < 0.5:
            path.write_bytes(mutated_json(json.dumps(results).encode(), rng))
            return breach(lambda: read_evaluation(tmp_path), tmp_path, (str(path),))
        path.write_bytes(mutated_bytes(log, rng))
        return breach(lambda: read_training_log(tmp_path), tmp_path, (str(path),))

    assert not breaches(tmp_path, trial)
