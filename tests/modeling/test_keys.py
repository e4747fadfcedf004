"""Every key that is added to Detectron2's has an effect, in each architecture that reads it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from detectron2.config import CfgNode, get_cfg
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_backbone, build_model
from segmentors import make_batch, make_cfg, make_resnet_cfg

from ocr_panoptic import add_ocr_config
from ocr_panoptic.modeling import OCRSemSegFPNHead
from ocr_panoptic.modeling.losses import LOSSES

TESTS = Path(__file__).resolve().parents[1]
SCHEME = "MODEL.CONTEXT.NAME"
TRANSFORMER = (SCHEME, "Segmentation-Transformer")
HEAD = "MODEL.SEM_SEG_HEAD"
ViT = (
    *("MODEL.TIMM.NAME", "test_vit", "MODEL.TIMM.OUTPUT_STRIDE", 32),
    *(f"{HEAD}.IN_FEATURES", "['blocks.5']", f"{HEAD}.COARSE_IN_FEATURES", "['blocks.5']"),
)
COARSE = "COARSE_LOSS_TYPE"
OHEM = (f"{HEAD}.LOSS_TYPE", "ohem", f"{HEAD}.OHEM_THRESHOLD", 0.2)

# Key, another value than the default, what else is set.
BOTH = [
    ("MODEL.OCR.CHANNELS", 64, ()),
    ("MODEL.OCR.KEY_CHANNELS", 24, ()),
    ("MODEL.OCR.TRANSFORM_CONVS", 1, ()),
    ("MODEL.OCR.SCALE_RELATION", False, ()),
    ("MODEL.OCR.DROPOUT", 0.9, ()),
    ("MODEL.OCR.NORM", "FrozenBN", ()),
    ("MODEL.OCR.NEGATIVE_SLOPE", 0.01, ()),
    ("MODEL.OCR.NEGATIVE_SLOPE", 0.01, (SCHEME, "PPM")),
    ("MODEL.OCR.REGION_SUPERVISION", False, ()),
    ("MODEL.OCR.COARSE_LOSS_WEIGHT", 0.7, ()),
    ("MODEL.OCR.RESIDUAL", True, ()),
    ("MODEL.OCR.COARSE_START", "detectron2", ()),
    ("MODEL.CONTEXT.NAME", "none", ()),
    ("MODEL.CONTEXT.ENCODER_SELF_ATTENTION", True, TRANSFORMER),
    ("MODEL.CONTEXT.DECODER_SELF_ATTENTION", "before", TRANSFORMER),
    ("MODEL.CONTEXT.DECODER_SELF_ATTENTION", "after", TRANSFORMER),
    ("MODEL.CONTEXT.JOINT_BLOCKS", 3, (SCHEME, "Joint-Transformer")),
    ("MODEL.CONTEXT.DILATIONS", [1, 2, 3], (SCHEME, "ASPP")),
    ("MODEL.CONTEXT.DILATIONS", [1, 2, 3], (SCHEME, "ASP-OCR")),
    ("MODEL.CONTEXT.NUM_REGIONS", 8, (SCHEME, "Double-Attention")),
    (f"{HEAD}.CLASS_WEIGHTS", "[1.0, 1.0, 1.0, 1.0, 9.0]", ()),
    (f"{HEAD}.LOSS_TYPE", "ohem", (f"{HEAD}.OHEM_THRESHOLD", 0.2, f"{HEAD}.OHEM_MIN_KEPT", 9)),
    *((f"{HEAD}.{key}", "0.5 cross_entropy + 2 dice", ()) for key in ("LOSS_TYPE", COARSE)),
    *((f"{HEAD}.LOSS_TYPE", name, ()) for name in LOSSES if name not in ("cross_entropy", "ohem")),
    (f"{HEAD}.OHEM_THRESHOLD", 0.1, (*OHEM[:2], f"{HEAD}.OHEM_MIN_KEPT", 9)),
    (f"{HEAD}.OHEM_MIN_KEPT", 9, OHEM),
]
SEMANTIC = [
    ("MODEL.ALIGN_CORNERS", True, ()),
    ("MODEL.PAD_TO_MULTIPLE", 1, ()),
    ("MODEL.HMSA.ENABLED", True, ()),
    ("MODEL.HMSA.SCALE_LOSS_WEIGHT", 0.5, ("MODEL.HMSA.ENABLED", True)),
    (f"{HEAD}.COARSE_IN_FEATURES", "['layer2']", ()),
    (f"{HEAD}.COARSE_KERNEL", 1, ()),
    (f"{HEAD}.COARSE_CHANNELS", 40, ()),
    (f"{HEAD}.COARSE_DROPOUT", 0.9, ()),
    ("MODEL.TIMM.NAME", "resnet34", ()),
    ("MODEL.TIMM.OUTPUT_STRIDE", 16, ()),
    ("MODEL.TIMM.NORM", "FrozenBN", ()),
    ("MODEL.TIMM.FROZEN", True, ()),
    ("MODEL.TIMM.DROP_PATH", 0.9, ()),
    ("MODEL.TIMM.OUTPUT_NORM", "LN", ()),
    ("MODEL.TIMM.PATCH_SIZE", 8, ViT),
    ("MODEL.CONTEXT.TRUE_PART", "gather", (SCHEME, "GT-OCR")),
    ("MODEL.CONTEXT.TRUE_PART", "relation", (SCHEME, "GT-OCR")),
]
RESNET = [
    ("MODEL.RESNETS.RES4_DILATION", 1),
    ("MODEL.RESNETS.RES5_MULTI_GRID", "[1, 2, 4]"),
    ("MODEL.RESNETS.STEM_TYPE", "basic"),
    ("MODEL.RESNETS.CONTRACT_DILATION", True),
    ("MODEL.RESNETS.STEM_CEIL_MODE", True),
]
# Key -> the file that shows its effect.
ELSEWHERE = {
    "DATASETS.FILES": "data/test_data_file.py",
    "MODEL.TRUST_PICKLE": "checkpoint/test_checkpointer.py",
    "MODEL.WEIGHTS_MIN_SHARE": "checkpoint/test_fit.py",
    "MODEL.FEATURE_CACHE": "engine/test_feature_cache.py",
    "MODEL.OCR.RECOMPUTE": "modeling/test_recompute.py",
    "SOLVER.ACCUMULATION_STEPS": "engine/test_train_net.py",
    "SOLVER.HEAD_LR_FACTOR": "engine/test_optimizer.py",
    "SOLVER.OPTIMIZER": "engine/test_optimizer.py",
    "SOLVER.LAYER_DECAY": "engine/test_optimizer.py",
    "MODEL.EMA.ENABLED": "engine/test_averaging.py",
    "MODEL.EMA.DECAY": "engine/test_averaging.py",
    "SOLVER.CHECKPOINTS_TO_KEEP": "engine/test_checkpoints.py",
    "SOLVER.AMP.PRECISION": "engine/test_accumulation.py",
    "SOLVER.GATHER_METRIC_PERIOD": "engine/test_accumulation.py",
    "SOLVER.POLY_LR_POWER": "engine/test_accumulation.py",
    "SOLVER.POLY_LR_CONSTANT_ENDING": "engine/test_accumulation.py",
    "INPUT.CHANNELS": "engine/test_channels_run.py",
    "INPUT.FIXED_SIZE": "data/semantic/test_semantic_augmentation.py",
    "INPUT.INTERPOLATION": "data/semantic/test_semantic_augmentation.py",
    "INPUT.RANDOM_SCALE": "data/semantic/test_semantic_augmentation.py",
    "INPUT.RANDOM_ASPECT": "data/semantic/test_semantic_augmentation.py",
    "INPUT.BRIGHTNESS_SHIFT": "data/semantic/test_semantic_augmentation.py",
    "INPUT.CROP.AFTER_RESIZE": "data/panoptic/test_mapper.py",
    "INPUT.CROP.SINGLE_CATEGORY_MAX_AREA": "data/semantic/test_semantic_augmentation.py",
    "TEST.BEST_CHECKPOINT": "engine/test_checkpoints.py",
    "TEST.OPTIMIZED": "modeling/test_deploy.py",
    "TEST.PRECISION": "modeling/test_deploy.py",
    "TEST.SAVE_PREDICTIONS": "engine/test_train_net.py",
    "TEST.SCALES": "modeling/test_inference.py",
    "TEST.FLIP": "modeling/test_inference.py",
    "TEST.SLIDING_WINDOW.SIZE": "modeling/test_inference.py",
    "TEST.SLIDING_WINDOW.STRIDE": "modeling/test_inference.py",
    "TEST.ACCUMULATOR_DEVICE": "modeling/test_inference.py",
    "MODEL.SEGFIX.BOUNDARY_DISTANCE": "data/test_offset_mapper.py",
    "MODEL.SEGFIX.CHANNELS": "modeling/test_segfix.py",
    "MODEL.SEGFIX.NORM": "modeling/test_segfix.py",
    "TEST.SEGFIX.WEIGHTS": "prediction/test_refined_predictions.py",
    "TEST.SEGFIX.CONFIG_FILE": "prediction/test_refined_predictions.py",
    "TEST.SEGFIX.SCALE": "prediction/test_refined_predictions.py",
}


def semantic_losses(cfg: CfgNode) -> list[float]:
    torch.manual_seed(0)
    model = build_model(cfg).train()
    torch.manual_seed(1)
    return [loss.item() for loss in model(make_batch()).values()]


def panoptic_losses(cfg: CfgNode) -> list[float]:
    """Of the head on random features."""
    torch.manual_seed(0)
    strides = {"p2": 4, "p3": 8, "p4": 16, "p5": 32}
    head = OCRSemSegFPNHead(cfg, {k: ShapeSpec(channels=16, stride=s) for k, s in strides.items()})
    torch.manual_seed(1)
    features = {name: torch.randn(2, 16, 64 // s, 96 // s) for name, s in strides.items()}
    _, losses = head.train()(features, torch.randint(0, 5, (2, 64, 96)))
    return [loss.item() for loss in losses.values()]


@pytest.mark.slow
@pytest.mark.parametrize("key, value, base", [*BOTH, *SEMANTIC])
def test_every_key_changes_the_losses_of_the_semantic_model(key, value, base):
    assert semantic_losses(make_cfg(*base, key, value)) != semantic_losses(make_cfg(*base))


@pytest.mark.parametrize("key, value, base", BOTH)
def test_every_key_changes_the_losses_of_the_panoptic_head(small_cfg, key, value, base):
    base = (*base, f"{HEAD}.NUM_CLASSES", 5)

    def make(*opts: object) -> CfgNode:
        cfg = small_cfg("ocr", *map(str, opts))
        cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 5
        return cfg

    assert panoptic_losses(make(*base, key, value)) != panoptic_losses(make(*base))


@pytest.mark.slow
@pytest.mark.parametrize("key, value", RESNET)
def test_every_key_of_the_dilated_resnet_changes_its_features(key, value):
    def features(*opts: object) -> torch.Tensor:
        cfg = make_resnet_cfg(50)
        cfg.merge_from_list([str(o) for o in opts])
        torch.manual_seed(0)
        backbone = build_backbone(cfg).eval()
        return backbone(torch.ones(1, 3, 64, 64).cumsum(2))["res5"].detach()

    changed, plain = features(key, value), features()
    assert changed.shape != plain.shape or not torch.allclose(changed, plain)


def added_keys(before: CfgNode, after: CfgNode, prefix: str = "") -> Iterator[str]:
    for key, value in after.items():
        if isinstance(value, CfgNode):
            yield from added_keys(before.get(key, CfgNode()), value, f"{prefix}{key}.")
        elif key not in before:
            yield prefix + key


def test_no_key_is_left_out():
    before, after = get_cfg(), get_cfg()
    add_ocr_config(after)
    shown = {key for key, *_ in (*BOTH, *SEMANTIC, *RESNET)} | ELSEWHERE.keys()
    assert set(added_keys(before, after)) == shown
    for key, file in ELSEWHERE.items():
        name = key.split(".", 1)[1]
        assert re.search(rf"\b{re.escape(name)}\b", (TESTS / file).read_text()), key
