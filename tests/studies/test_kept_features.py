"""A head trained on kept features equals, to the last bit, a head on the frozen backbone."""

import json
import re
from pathlib import Path

import pytest
import torch

from ocr_panoptic.config.files import load_config
from ocr_panoptic.modeling import TimmBackbone
from studies import train
from support.tiny_runs import ROOT, images_of, pixels

CONFIG = ROOT / "studies/configs/semantic_ocr_Lite0_frozen_camvid.yaml"
TAP = "['blocks.2']"
SMALL = [
    *("DATASETS.TRAIN", "('tiny_sem_train',)", "DATASETS.TEST", "('tiny_sem_val',)"),
    *("INPUT.FIXED_SIZE", "[64, 64]", "TEST.OPTIMIZED", "False", "SOLVER.MAX_ITER", "4"),
    *("TEST.EVAL_PERIOD", "2", "SOLVER.AMP.ENABLED", "True", "MODEL.CONTEXT.NAME", "OCR"),
    *("MODEL.SEM_SEG_HEAD.IN_FEATURES", TAP, "MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", TAP),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(train, "FOLDER", tmp_path / "cache")
    return tmp_path / "cache"


def make_network(seed: int, **options: object) -> TimmBackbone:
    """Return a network whose norms are not the identity."""
    torch.manual_seed(seed)
    network = TimmBackbone("tf_efficientnet_lite0", norm="BN", **options)
    for name, tensor in network.body.state_dict().items():
        if "running_" in name:
            tensor.add_(torch.rand(tensor.shape))
    return network


@pytest.mark.slow
def test_equal_to_the_frozen_backbone(tiny_data, make_args, tmp_path, monkeypatch, cache):
    """The last weights and the lines of metrics.json are equal with and without kept features."""
    loaded = make_network(0).body.state_dict()
    torch.save(loaded, tmp_path / "a.pth")

    def run(name: str) -> tuple[dict, list[dict], set[Path]]:
        opts = ("OUTPUT_DIR", tmp_path / name, "MODEL.WEIGHTS", tmp_path / "a.pth")
        train.main(make_args(*SMALL, *opts, config=CONFIG))
        lines = map(json.loads, (tmp_path / name / "metrics.json").read_text().splitlines())
        log = [{k: v for k, v in line.items() if not re.search("time|eta", k)} for line in lines]
        model = torch.load(tmp_path / name / "model_final.pth", weights_only=True)["model"]
        return model, log, {*cache.rglob("*.pt")}

    monkeypatch.setattr(TimmBackbone, "forward", train.compute)
    expected, log, files = run("frozen")
    assert any("sem_seg/mIoU" in line for line in log) and not files
    monkeypatch.setattr(TimmBackbone, "forward", train.kept_features)
    for name in ("keeps features", "reads them"):
        kept, kept_log, found = run(name)
        assert kept_log == log and kept.keys() == expected.keys()
        assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())
        assert not files or found == files  # the second run adds none
        files = found
    # Training images, which some runs mirror, and validation images.
    assert 4 + 4 <= len(files) <= 2 * 8 + 4
    for name, tensor in expected.items():
        if name.startswith("backbone.") and not name.endswith("num_batches_tracked"):
            assert torch.equal(tensor, loaded[name.removeprefix("backbone.body.")])


@pytest.mark.slow
def test_each_network_and_image_has_separate_features(tiny_data, cache):
    """Features equal the network's for different weights, dilations, and a mirrored image."""
    images = [torch.tensor(pixels(f)).permute(2, 0, 1) for f in images_of(tiny_data)[:2]]
    batch = torch.stack([*images, *(image.flip(2) for image in images)]).float() / 64 - 2
    for seed, stride in ((0, 8), (1, 8), (1, 16)):
        network = make_network(seed, output_stride=stride, frozen=True)
        single = [train.compute(network, image) for image in batch.split(1)]
        for _ in range(2):
            found = train.kept_features(network, batch)
            assert found.keys() == single[0].keys()
            for name, maps in found.items():
                assert torch.equal(maps, torch.cat([one[name] for one in single]))
    assert len([*cache.iterdir()]) == 3 and len([*cache.rglob("*.pt")]) == 3 * 4


def test_a_network_that_learns_has_no_kept_features(cache):
    found = train.kept_features(make_network(0), torch.zeros(1, 3, 64, 64))
    assert found["blocks.2"].requires_grad and not cache.exists()


def test_configs_of_old_runs_are_read(tmp_path):
    (tmp_path / "config.yaml").write_text(f"_BASE_: {CONFIG}\nMODEL: {{FEATURE_CACHE: ./cache}}")
    assert load_config(str(tmp_path / "config.yaml"), []) == load_config(str(CONFIG), [])
