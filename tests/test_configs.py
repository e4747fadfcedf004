"""Every config builds its model and trains one iteration, and holds the recipe of its source."""

from pathlib import Path

import pytest
import torch
from detectron2 import model_zoo
from detectron2.config import CfgNode, get_cfg
from detectron2.modeling import build_model
from detectron2.solver import build_optimizer
from detectron2.utils.events import EventStorage

from ocr_panoptic import add_ocr_config
from ocr_panoptic.engine import Trainer, load_config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
ALL = sorted(p for p in CONFIGS.rglob("*.yaml") if not p.name.startswith("Base-"))
COCO = CONFIGS / "COCO-PanopticSegmentation"


def load(path: Path) -> CfgNode:
    return load_config(str(path), ["MODEL.DEVICE", "cpu"])


def architectures() -> list[Path]:
    """One config for each model: those that train the same model on other data are left out."""
    found = {}
    for path in ALL:
        model = load(path).MODEL
        model.WEIGHTS = ""
        found.setdefault(model.dump(), path)
    return list(found.values())


def differences(a: CfgNode, b: CfgNode, prefix: str = "") -> dict[str, tuple]:
    found = {}
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        if isinstance(x, CfgNode) and isinstance(y, CfgNode):
            found.update(differences(x, y, f"{prefix}{key}."))
        elif x != y:
            found[prefix + key] = (x, y)
    return found


@pytest.mark.parametrize("path", architectures(), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_config_builds_and_trains_one_iteration(path, batch):
    cfg = load(path)
    # What engine.complete_config fills in from data and machine.
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = cfg.MODEL.ROI_HEADS.NUM_CLASSES or 2
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES or 4
    for node in (cfg.MODEL.OCR, cfg.MODEL.RESNETS, cfg.MODEL.TIMM):
        node.NORM = node.NORM.replace("SyncBN", "BN")
    torch.manual_seed(0)
    model = build_model(cfg)
    optimizer = build_optimizer(cfg, model)
    scheduler = Trainer.build_lr_scheduler(cfg, optimizer)
    with EventStorage():
        losses = model.train()(batch(2))
    total = sum(losses.values())
    assert total.isfinite()
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    total.backward()
    optimizer.step()
    scheduler.step()
    moved = {k for k, p in model.named_parameters() if k in before and not p.equal(before[k])}
    parts = ["backbone", "sem_seg_head.predictor"]
    if cfg.MODEL.META_ARCHITECTURE == "PanopticFPN":
        parts += ["proposal_generator", "roi_heads"]
    else:
        parts.append("sem_seg_head.coarse_predictor")
        head = {"none": ["bottleneck"], "OCR": ["bottleneck", "context.g"]}
        parts += [f"sem_seg_head.{p}" for p in head.get(cfg.MODEL.CONTEXT.NAME, ["context"])]
    for part in parts:
        assert any(name.startswith(part) for name in moved), part
    if cfg.MODEL.SEM_SEG_HEAD.NAME == "OCRSemSegFPNHead":
        assert {"loss_sem_seg", "loss_sem_seg_coarse"} <= set(losses)
        part = "sem_seg_head.ocr.g" if cfg.MODEL.CONTEXT.NAME == "OCR" else "sem_seg_head.ocr."
        assert any(name.startswith(part) for name in moved)


@pytest.mark.parametrize("name", ["R_50_1x", "R_50_3x", "R_101_3x"])
def test_baselines_are_detectron2s(name):
    """Against the config of the same name in Detectron2's model zoo."""
    ours = load_config(str(COCO / f"panoptic_fpn_{name}.yaml"), [])
    theirs = model_zoo.get_config(f"COCO-PanopticSegmentation/panoptic_fpn_{name}.yaml")
    added = get_cfg()
    add_ocr_config(added)
    added = {k for k, (mine, theirs) in differences(added, get_cfg()).items() if theirs is None}
    assert set(differences(ours, theirs)) - added <= {"MODEL.DEVICE", "OUTPUT_DIR"}


@pytest.mark.parametrize(
    "plain, ocr",
    [(p, p.with_name(p.name.replace("panoptic_fpn_R", "panoptic_fpn_ocr_R"))) for p in ALL
     if "panoptic_fpn_R" in p.name],
    ids=lambda p: p.stem,
)  # fmt: skip
def test_pairs_differ_in_the_head_alone(plain, ocr):
    changed = differences(load_config(str(plain), []), load_config(str(ocr), []))
    changed = {k: v for k, v in changed.items() if not k.startswith("MODEL.OCR.")}
    changed.pop("OUTPUT_DIR", None)
    assert changed == {
        "MODEL.SEM_SEG_HEAD.NAME": ("SemSegFPNHead", "OCRSemSegFPNHead"),
        "MODEL.SEM_SEG_HEAD.LOSS_WEIGHT": (0.5, 0.25),
    }
    assert load_config(str(ocr), []).MODEL.OCR.COARSE_LOSS_WEIGHT == 0.25


def test_3x_schedule():
    """270k iterations of 16 images, learning rate 0.02, steps at 210k and 250k."""
    for name in ("panoptic_fpn_ocr_R_50_3x", "panoptic_fpn_ocr_R_101_3x"):
        solver = load_config(str(COCO / f"{name}.yaml"), []).SOLVER
        assert (solver.MAX_ITER, solver.STEPS) == (270000, (210000, 250000))
        assert (solver.IMS_PER_BATCH, solver.BASE_LR) == (16, 0.02)


def test_children_hold_differences_only():
    for path in ALL:
        assert len(path.read_text().splitlines()) <= 60, path
        assert path.read_text().startswith(("_BASE_", "#")), path
