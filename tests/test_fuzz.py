"""Damaged and hostile files: a message or success, no traceback, no hang, no code that is run.

Seeded and bounded. OCR_PANOPTIC_FUZZ_TRIALS=5000 makes more trials with each kind of file than the
100 of every day, OCR_PANOPTIC_FUZZ_SEED=7 makes others.
"""

import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from detectron2.data import DatasetCatalog
from PIL import Image

from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, write_data_file
from ocr_panoptic.data.index import index_file
from ocr_panoptic.data.register import register_data_files
from ocr_panoptic.engine import load_config
from ocr_panoptic.engine.config_checks import check_values
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.labels import read_label_png
from ocr_panoptic.formats.pictures import read_picture
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
