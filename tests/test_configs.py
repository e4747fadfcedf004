"""Every config has the recorded values, builds its model, and agrees with the publications."""

import contextlib
import re
import shlex
from collections.abc import Callable
from fnmatch import fnmatch

import pytest
import torch
import yaml
from detectron2 import model_zoo
from detectron2.config import CfgNode, get_cfg
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone, build_model
from detectron2.solver import build_optimizer
from detectron2.utils.events import EventStorage
from torch import nn

from ocr_panoptic import add_ocr_config
from ocr_panoptic.config.files import CLASS_KEYS, EXACT
from ocr_panoptic.config.rules import value_of
from ocr_panoptic.data.published.splits import NAMED_SPLITS
from ocr_panoptic.formats.files import read_yaml
from ocr_panoptic.modeling import ContextSemSegHead, deploy
from ocr_panoptic.predict.complete import complete_config, complete_schedule
from support.loaded_configs import NAMES, RESOLVED, default_config, differences, load, resolved
from support.tiny_runs import CONFIGS, ROOT
from train_net import Trainer

COCO = "COCO-PanopticSegmentation"


PARTS = re.split(r"^(?=\S)", RESOLVED.read_text(), flags=re.M)[2:]
RECORDED = {name: values for name, _, values in (part.partition(":\n") for part in PARTS)}


@pytest.mark.parametrize("name", sorted({*NAMES, *RECORDED}))
def test_resolved_values(name):
    """After an intended change, run python -m tests.support.loaded_configs to record it."""
    assert resolved(name) == yaml.safe_load(RECORDED[name])


PUBLISHED = [
    (pattern, expected)
    for source in read_yaml(RESOLVED.with_name("published_numbers.yaml")).values()
    for pattern, expected in source.items()
]


@pytest.mark.parametrize("pattern, expected", PUBLISHED)
def test_numbers_of_the_publications(pattern, expected):
    names = [name for name in NAMES if fnmatch(name, pattern)]
    assert names
    for name in names:
        found = {key: value_of(load(name), key) for key in expected}
        assert {k: [*v] if isinstance(v, tuple) else v for k, v in found.items()} == expected, name


def test_detectron2_reads_every_config():
    """Detectron2's functions alone read the files, and also those that others include."""
    for file in CONFIGS.rglob("*.yaml"):
        cfg = get_cfg()
        add_ocr_config(cfg)
        cfg.merge_from_file(str(file))
        name = file.relative_to(CONFIGS).with_suffix("").as_posix()
        assert name not in NAMES or cfg == load(name), name


def test_each_config_has_a_folder_and_the_schedule_of_its_name():
    for name in NAMES:
        solver = load(name).SOLVER
        schedule = f"_{solver.MAX_ITER // 1000}k_bs{solver.IMS_PER_BATCH}"
        assert name.endswith(schedule) or not re.search(r"k_bs\d+$", name), name
    folders = [load(name).OUTPUT_DIR for name in NAMES if not name.startswith("Custom-Panoptic")]
    assert len(set(folders)) == len(folders)


def test_classes_equal_the_data():
    checked = 0
    for name in NAMES:
        cfg = load(name)
        for split in {*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST} & NAMED_SPLITS.keys():
            if cfg.MODEL.META_ARCHITECTURE != "SegFix":
                assert len(NAMED_SPLITS[split].space.classes) == cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("name", ["R_50_1x", "R_50_3x", "R_101_3x"])
def test_baselines_equal_detectron2s(name):
    """The reference is the config of the same name in Detectron2's model zoo."""
    theirs = model_zoo.get_config(f"{COCO}/panoptic_fpn_{name}.yaml")
    added = {key for key, (_, d2) in differences(default_config(), get_cfg()).items() if d2 is None}
    found = differences(load(f"{COCO}/panoptic_fpn_{name}"), theirs)
    free = {"MODEL.DEVICE", "OUTPUT_DIR", "SOLVER.CHECKPOINT_PERIOD"}  # they change no result
    assert set(found) - added - {*CLASS_KEYS} <= free
    assert {found[key] for key in CLASS_KEYS} == {(ours, theirs) for theirs, ours in EXACT.items()}


TABLES = (ROOT / "docs/paper_tables.md").read_text()
PATH = r"`([\w-]+/[\w/-]+)`"


def test_rows_of_the_papers_tables():
    """
    The keys of each row exist and have an effect.

    If a row has several configs, each starts from the weights of the previous config.
    """
    rows = [line for line in TABLES.splitlines() if line.startswith("| ") and re.search(PATH, line)]
    assert len(rows) >= 19
    for row in rows:
        files, keys = re.findall(PATH, row), re.findall(r"`([A-Z]+\.[^`]*)`", row)
        words = shlex.split(keys[0]) if keys else []
        cfgs = [load(file, *words) for file in files]
        for file, cfg in zip(files, cfgs):
            assert set(differences(load(file), cfg)) == set(words[::2]), row
        for before, after in zip(cfgs, cfgs[1:]):
            assert f"{before.OUTPUT_DIR}/model_final.pth" == after.MODEL.WEIGHTS, row


def kind(name: str) -> tuple[str, str, str, str]:
    model = load(name).MODEL
    timm = model.TIMM.NAME.partition("_")[0] if "timm" in model.BACKBONE.NAME else ""
    return model.BACKBONE.NAME, timm, model.SEM_SEG_HEAD.NAME, model.CONTEXT.NAME


TRAINED = {kind(name): name for name in reversed(NAMES)}.values()  # a config of each kind
# Networks of the same kinds with fewer channels and layers.
SMALL = (
    *("MODEL.FPN.OUT_CHANNELS", "32", "MODEL.SEM_SEG_HEAD.CONVS_DIM", "32"),
    *("MODEL.ROI_BOX_HEAD.FC_DIM", "32", "MODEL.ROI_MASK_HEAD.CONV_DIM", "32"),
    *("MODEL.RESNETS.DEPTH", "50", "MODEL.RESNETS.WIDTH_PER_GROUP", "16"),
    *("MODEL.RESNETS.RES2_OUT_CHANNELS", "64"),
    *("MODEL.OCR.CHANNELS", "32", "MODEL.OCR.KEY_CHANNELS", "16"),
)
SMALL_TIMM = {
    "hrnet": "hrnet_w18_small",
    "convnext": "test_convnext",
    "vit": "vit_tiny_patch16_224",
}


def load_small(name: str) -> CfgNode:
    _, timm, head, scheme = kind(name)
    coarse = ("MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", "24") if head == "ContextSemSegHead" else ()
    network = ("MODEL.TIMM.NAME", SMALL_TIMM[timm]) if timm in SMALL_TIMM else ()
    # A correction that starts at 0 trains its scheme only from the second iteration on.
    residual = ("MODEL.OCR.RESIDUAL", "False") if scheme != "none" else ()
    return load(name, *SMALL, *coarse, *network, *residual)


def complete(cfg: CfgNode) -> CfgNode:
    """Return a completed copy; classes from the data become 2 thing and 4 semantic classes."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE = "cpu"
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = ()
    complete_config(cfg)
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = cfg.MODEL.ROI_HEADS.NUM_CLASSES or 2
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES or 4
    return cfg


def is_refined(cfg: CfgNode) -> bool:
    return cfg.MODEL.SEM_SEG_HEAD.NAME in ("OCRSemSegFPNHead", "ContextSemSegHead")


def is_segfix(cfg: CfgNode) -> bool:
    return cfg.MODEL.META_ARCHITECTURE == "SegFix"


@pytest.fixture(scope="module")
def builder() -> Callable[[str], Callable]:
    """Return a registry's ``get`` that builds each backbone only once for all models."""
    get, backbones = BACKBONE_REGISTRY.get, {}

    def get_shared(name: str) -> Callable[[CfgNode, ShapeSpec], Backbone]:
        def build(cfg: CfgNode, input_shape: ShapeSpec) -> Backbone:
            m, head = cfg.MODEL, cfg.MODEL.SEM_SEG_HEAD
            read = [head.IN_FEATURES, head.COARSE_IN_FEATURES]
            key = str([m.BACKBONE, m.RESNETS, m.FPN, m.TIMM, m.ALIGN_CORNERS, read, input_shape])
            if key not in backbones:
                backbones[key] = get(name)(cfg, input_shape)
            return backbones[key]

        return build

    return get_shared


# Strides of the logits that are not in the config's name, and not 4, the stride of an FPN.
STRIDES = {
    "Custom-SemanticSegmentation/ocr_Lite0": 8,
    "Custom-SemanticSegmentation/plain_Lite0": 8,
    "quick_schedules/semantic_ocr_R_18_scenes": 8,
    "quick_schedules/semantic_ocr_Lite0_scenes": 16,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_builds(name, builder, monkeypatch):
    """
    Detectron2 builds the classes that the config names.

    For 2 images of 128 x 192 pixels without values, logits have the expected sizes.
    """
    cfg = load(name).clone()
    cfg.defrost()
    monkeypatch.setitem(complete_schedule.__globals__, "training_records", lambda cfg: range(1000))
    complete_schedule(cfg)
    Trainer.build_lr_scheduler(cfg, build_optimizer(cfg, nn.Linear(1, 1)))
    cfg = complete(cfg)
    cfg.MODEL.update(DEVICE="meta", WEIGHTS="")
    # torch.autocast does not know the device "meta"; layers only switch autocast off.
    monkeypatch.setattr("torch.autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(BACKBONE_REGISTRY, "get", builder)
    with torch.device("meta"), torch.no_grad():
        model = build_model(cfg).train()
        head = model.sem_seg_head
        features = {
            name: torch.zeros(2, s.channels, 128 // s.stride, 192 // s.stride)
            for name, s in model.backbone.output_shape().items()
        }
        truth = torch.zeros(2, 128, 192, dtype=torch.int64)  # for GT-OCR
        logits = head.layers(*[features, truth][: 1 + isinstance(head, ContextSemSegHead)])
        deploy(model, "bfloat16")  # deploys all layers of a config
    m, built = cfg.MODEL, [model, head]
    named = [m.META_ARCHITECTURE, m.SEM_SEG_HEAD.NAME]
    if is_panoptic := hasattr(model, "roi_heads"):
        built += [model.roi_heads, model.roi_heads.mask_head]
        named += [m.ROI_HEADS.NAME, m.ROI_MASK_HEAD.NAME]
    assert [type(part).__name__ for part in built] == named
    assert is_panoptic == (m.META_ARCHITECTURE == "PanopticSegmentor")
    classes = [cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES] * (1 + is_refined(cfg))
    classes = [2, 8] if is_segfix(cfg) else classes
    told = re.search(r"_[sd](\d+)", name)
    stride = int(told[1]) if told else STRIDES.get(name, 4)
    size = (128 // stride, 192 // stride)
    logits = [logits] if isinstance(logits, torch.Tensor) else logits
    assert [x.shape for x in logits] == [(2, count, *size) for count in classes]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_trains_one_iteration(name, batch):
    """Small networks train: losses are finite, and each part of the network changes."""
    cfg = complete(load_small(name))
    torch.manual_seed(0)
    model = build_model(cfg)
    optimizer = build_optimizer(cfg, model)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    inputs = batch(2)
    if is_segfix(cfg):
        inputs = [{**one, "sem_seg": torch.randint(0, 18, one["sem_seg"].shape)} for one in inputs]
    with EventStorage():
        losses = model.train()(inputs)
    assert all(loss.isfinite() for loss in losses.values())
    if is_segfix(cfg):
        assert set(losses) == {"loss_boundary", "loss_direction"}
    else:
        assert "loss_sem_seg" in losses and ("loss_sem_seg_coarse" in losses) == is_refined(cfg)
    sum(losses.values()).backward()
    optimizer.step()
    parts = [name for name, _ in model.named_children()]
    parts += [f"sem_seg_head.{name}" for name, _ in model.sem_seg_head.named_children()]
    for part in parts:
        moved = {key: p for key, p in model.named_parameters() if key.startswith(f"{part}.")}
        if any(p.requires_grad for p in moved.values()):
            assert any(p.grad is not None and p.grad.any() for p in moved.values()), part
            assert any(not p.equal(before[key]) for key, p in moved.items()), part
