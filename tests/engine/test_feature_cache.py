"""A head that is trained on kept features is, to the last bit, one on the frozen backbone."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from tiny_runs import CONFIGS

from ocr_panoptic.data import (
    FeatureCache,
    SemanticDatasetMapper,
    cache_path,
    write_feature_cache,
)
from ocr_panoptic.engine import complete_config, load_config
from ocr_panoptic.modeling import TimmBackbone
from ocr_panoptic.pictures import read_picture
from train_net import main

CONFIG = CONFIGS / "quick_schedules/semantic_ocr_Lite0_frozen_camvid.yaml"
TAP = "['blocks.2']"
SMALL = [
    *("DATASETS.TRAIN", "('tiny_sem_train',)", "DATASETS.TEST", "('tiny_sem_val',)"),
    *("INPUT.FIXED_SIZE", "[64, 64]", "TEST.OPTIMIZED", "False", "SOLVER.MAX_ITER", "4"),
    *("MODEL.SEM_SEG_HEAD.IN_FEATURES", TAP, "MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", TAP),
]


def write_weights(path: Path, seed: int) -> str:
    """Of a network whose norms are not the identity."""
    torch.manual_seed(seed)
    network = TimmBackbone("tf_efficientnet_lite0", norm="BN")
    for name, tensor in network.body.state_dict().items():
        if "running_" in name:
            tensor.add_(torch.rand(tensor.shape))
    torch.save(network.body.state_dict(), path)
    return str(path)


@pytest.fixture
def run(tiny_data, make_args, tmp_path):
    """Factory: trains; returns the last weights, and the lines of metrics.json."""
    weights = write_weights(tmp_path / "weights.pth", 0)

    def train(name: str, *opts: object, flags: tuple[str, ...] = ()) -> tuple[dict, list[dict]]:
        folder = tmp_path / name
        opts = ("MODEL.WEIGHTS", weights, *opts)
        main(make_args(*SMALL, "OUTPUT_DIR", folder, *opts, config=CONFIG, flags=flags))
        lines = map(json.loads, (folder / "metrics.json").read_text().splitlines())
        untimed = [{k: v for k, v in line.items() if "time" not in k} for line in lines]
        untimed = [{k: v for k, v in line.items() if "eta" not in k} for line in untimed]
        return torch.load(folder / "model_final.pth", weights_only=True)["model"], untimed

    return train


@pytest.mark.parametrize("scheme", ["OCR", pytest.param("GT-OCR", marks=pytest.mark.slow)])
def test_equal_to_the_frozen_backbone(run, tmp_path, scheme):
    opts = ("MODEL.CONTEXT.NAME", scheme, "TEST.EVAL_PERIOD", 2, "SOLVER.AMP.ENABLED", True)
    weights, log = run("frozen", *opts, "MODEL.FEATURE_CACHE", "")
    for name in ("fills the cache", "reads the cache"):
        kept_weights, kept_log = run(name, *opts, "MODEL.FEATURE_CACHE", tmp_path / "cache")
        assert kept_log == log
        assert kept_weights.keys() == weights.keys()
        assert all(torch.equal(kept_weights[name], tensor) for name, tensor in weights.items())
        messages = (tmp_path / name / "log.txt").read_text()
        assert ("Computing the features" in messages) == (name == "fills the cache")
    assert any("sem_seg/mIoU" in line for line in log)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 2  # training and validation
    body = TimmBackbone("tf_efficientnet_lite0", output_stride=8, norm="BN").body
    loaded = torch.load(tmp_path / "weights.pth", weights_only=True)
    assert not body.load_state_dict(loaded).missing_keys
    for name, tensor in weights.items():
        if name.startswith("backbone.") and not name.endswith("num_batches_tracked"):
            assert torch.equal(tensor, loaded[name.removeprefix("backbone.body.")])


def test_mirror_images_have_features_of_their_own(run, tmp_path):
    run("run", "MODEL.FEATURE_CACHE", tmp_path / "cache", "DATASETS.TEST", "()")
    (array,) = (tmp_path / "cache").glob("*.npy")
    cache = FeatureCache(array.with_suffix(""))
    network = TimmBackbone("tf_efficientnet_lite0", output_stride=8, norm="BN").eval()
    network.body.load_state_dict(torch.load(tmp_path / "weights.pth", weights_only=True))
    records = DatasetCatalog.get("tiny_sem_train")
    assert len(records) == 8
    for record in records:
        image = torch.tensor(read_picture(record["file_name"], "RGB")).permute(2, 0, 1)[None]
        both = [cache.features(record["file_name"], mirrored)["blocks.2"] for mirrored in (0, 1)]
        for image_, found in zip((image, image.flip(3)), both, strict=True):
            with torch.no_grad():
                expected = network((image_ - 127.5) / 127.5)["blocks.2"][0]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(both[1].flip(2), both[0], rtol=1e-2, atol=1e-2)
        labels = [cache.labels(record["file_name"], mirrored) for mirrored in (0, 1)]
        assert torch.equal(labels[1], labels[0].flip(1))


def test_other_weights_and_settings_have_another_cache(run, tmp_path):
    cache = tmp_path / "cache"
    opts = ("MODEL.FEATURE_CACHE", cache, "DATASETS.TEST", "()", "SOLVER.MAX_ITER", 1)
    run("first", *opts)
    (array,) = cache.glob("*.npy")
    other = write_weights(tmp_path / "other.pth", 1)
    run("second", *opts, "MODEL.WEIGHTS", other)
    run("third", *opts, "INPUT.INTERPOLATION", "bilinear")
    array.unlink()  # to make room; its JSON stays
    run("fourth", *opts, "SOLVER.BASE_LR", 0.1, "MODEL.CONTEXT.NAME", "none")  # of the head alone
    assert len(list(cache.glob("*.npy"))) == 3
    with pytest.raises(ValueError, match="backbone's weights differ from those of MODEL.WEIGHTS"):
        run("first", *opts, "MODEL.WEIGHTS", other, "SOLVER.MAX_ITER", 2, flags=("--resume",))
    with pytest.raises(ValueError, match=r"FIXED_SIZE is \[60, 64\]; .* needs multiples of 8"):
        run("fifth", *opts, "INPUT.FIXED_SIZE", "[60, 64]")


def test_other_classes_have_another_cache(tiny_data, tmp_path, monkeypatch):
    """The files of the labels stay as they are where two classes become one."""
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"any")
    cfg = load_config(str(CONFIG), SMALL)
    complete_config(cfg, training=True)
    records = DatasetCatalog.get("tiny_sem_train")
    before = cache_path(cfg, weights, records, True)
    assert cache_path(cfg, weights, records, True) == before
    label_map = MetadataCatalog.get("tiny_sem_train").label_map
    monkeypatch.setitem(label_map, max(label_map), 0)
    assert cache_path(cfg, weights, records, True) != before


def test_a_full_disk(tiny_data, tmp_path, monkeypatch):
    """Without the reservation the kernel kills the process that writes to the array."""
    cfg = load_config(str(CONFIG), SMALL)
    complete_config(cfg, training=True)
    mapper = SemanticDatasetMapper(cfg, True)
    path, records = tmp_path / "cache" / "name", DatasetCatalog.get("tiny_sem_train")
    reserved = []

    def full(descriptor: int, offset: int, size: int) -> None:
        reserved.append((offset, size))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="MODEL.FEATURE_CACHE cannot be kept in .*cache .No space"):
        write_feature_cache(path, records, mapper, lambda image: {"f": image.float()}, "")
    views, size = 2 * len(records), 64 * 64
    assert reserved[0][0] == 0 and reserved[0][1] > views * (3 * 4 * size + size)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
    "key, value",
    [
        ("INPUT.RANDOM_SCALE", "[0.5, 2.0]"),
        ("INPUT.RANDOM_ASPECT", "[0.9, 1.1]"),
        ("INPUT.CROP.ENABLED", True),
        ("INPUT.BRIGHTNESS_SHIFT", 10),
        ("INPUT.RANDOM_FLIP", "vertical"),
        ("INPUT.FIXED_SIZE", "[]"),
        ("MODEL.TIMM.FROZEN", False),
        ("MODEL.WEIGHTS", ""),
        ("TEST.FLIP", True),
        ("TEST.SCALES", "[1.0, 2.0]"),
        ("TEST.PRECISION", "bfloat16"),
    ],
)
def test_what_cannot_be_kept_is_refused(tiny_data, key, value):
    opts = [*SMALL, "TEST.OPTIMIZED", True, key, value]
    with pytest.raises(ValueError, match=f"MODEL.FEATURE_CACHE.*{key}"):
        complete_config(load_config(str(CONFIG), list(map(str, opts))))
