"""Values that nothing can be done with, and keys that nothing reads."""

import functools
import math
import re

import pytest
from detectron2.config import CfgNode

from ocr_panoptic.engine import complete_config, load_config
from support.tiny_runs import OCR_CONFIG, PLAIN_CONFIG, SEMANTIC_CONFIG


@pytest.mark.parametrize(
    "key, value, fault",
    [
        ("SOLVER.MAX_ITER", -5, "at least 0"),
        ("SOLVER.BASE_LR", -0.1, "at least 0"),
        ("SOLVER.BASE_LR", math.nan, "at least 0"),
        ("SOLVER.BASE_LR", math.inf, "at least 0"),
        ("SOLVER.WEIGHT_DECAY", -1.0, "at least 0"),
        ("SOLVER.WARMUP_ITERS", -1, "at least 0"),
        ("SOLVER.CHECKPOINT_PERIOD", -1, "at least 0 (0 saves"),
        ("SOLVER.GATHER_METRIC_PERIOD", 0, "at least 1"),
        ("TEST.EVAL_PERIOD", -1, "at least 0 (0 leaves it to TEST.EVALUATIONS)"),
        ("DATALOADER.NUM_WORKERS", -1, "at least 0 (0 loads images in the training's own process)"),
        ("SOLVER.STEPS", (2, "a"), "a tuple of rising iterations"),
        ("SOLVER.STEPS", (2, 1), "a tuple of rising iterations"),
        ("SOLVER.LR_SCHEDULER_NAME", "Foo", "one of WarmupMultiStepLR, WarmupCosineLR"),
        ("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "foo", "one of value, norm"),
        ("DATALOADER.SAMPLER_TRAIN", "Foo", "one of TrainingSampler"),
        ("MODEL.BACKBONE.NAME", "foo", "one of build_"),
        ("MODEL.SEM_SEG_HEAD.NAME", "foo", "one of "),
        ("MODEL.RESNETS.DEPTH", 17, "one of 18, 34"),
        ("MODEL.OCR.NORM", "foo", 'one of "", BN, SyncBN'),
        ("MODEL.DEVICE", "foo", "auto, cpu, or cuda"),
        ("MODEL.DEVICE", "meta", "auto, cpu, or cuda"),
        ("INPUT.MIN_SIZE_TRAIN", (), "at least one size in pixels"),
        ("INPUT.MIN_SIZE_TRAIN", (-64,), "at least one size in pixels"),
        ("INPUT.MIN_SIZE_TRAIN", ("a",), "at least one size in pixels"),
        ("INPUT.MIN_SIZE_TRAIN_SAMPLING", "foo", "one of choice, range"),
        ("INPUT.FORMAT", "XYZ", "one of BGR, RGB"),
        ("MODEL.OCR.KEY_CHANNELS", 0, "at least 1"),
        ("MODEL.TIMM.PATCH_SIZE", -1, "at least 0"),
        ("MODEL.OCR.CHANNELS", 0, "at least 1"),
        ("MODEL.PIXEL_STD", [0, 1, 1], "a list of numbers above 0"),
        ("MODEL.PIXEL_STD", [1, 1, math.nan], "a list of numbers above 0"),
        ("MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE", [0.5, "a"], "a list of numbers of at"),
        ("MODEL.KEYPOINT_ON", True, "it is to be False"),
        ("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", 254, "it is to be 255"),
        ("MODEL.LOAD_PROPOSALS", True, "it is to be False"),
        ("TEST.AUG.MIN_SIZES", [], "at least one size in pixels"),
        ("DATALOADER.SAMPLER_TRAIN", "WeightedTrainingSampler", "one of TrainingSampler"),
        ("MODEL.META_ARCHITECTURE", "Foo", "OCRSemanticSegmentor or PanopticFPN"),
        ("SEED", 10**30, "at most 2147483647"),
    ],
)
def test_values_that_nothing_can_be_done_with(key, value, fault):
    cfg = load_config(str(OCR_CONFIG), ["DATASETS.TEST", "()"])
    *sections, name = key.split(".")
    functools.reduce(CfgNode.get, sections, cfg)[name] = value
    with pytest.raises(ValueError) as error:
        complete_config(cfg)
    message = str(error.value)
    assert message.startswith(f"{key} is {value}") and fault in message and "\n" not in message


TIMM = "MODEL.BACKBONE.NAME build_timm_fpn_backbone MODEL.TIMM.FROZEN True"
COSINE = "SOLVER.LR_SCHEDULER_NAME WarmupCosineLR"
MEANS, FOUR = "MODEL.PIXEL_MEAN [1.0,1.0,1.0,1.0]", "INPUT.CHANNELS 4"


@pytest.mark.parametrize(
    "config, opts, fault",
    [
        (OCR_CONFIG, "TEST.FLIP True", "TEST.FLIP is True (default False)"),
        (OCR_CONFIG, "TEST.AUG.FLIP False", "read with TEST.AUG.ENABLED True alone"),
        (SEMANTIC_CONFIG, "TEST.AUG.ENABLED True", "MODEL.META_ARCHITECTURE PanopticFPN"),
        (OCR_CONFIG, "TEST.SCALES [2.0]", "TEST.SCALES is [2.0]"),
        (OCR_CONFIG, "MODEL.SEM_SEG_HEAD.COARSE_KERNEL 1", "COARSE_KERNEL is 1 (default 3)"),
        (OCR_CONFIG, "MODEL.TIMM.NAME resnet18", "build_timm_backbone, build_timm_fpn_backbone or"),
        (PLAIN_CONFIG, "MODEL.CONTEXT.NAME PPM", "CONTEXT.NAME is 'PPM' (default 'OCR')"),
        (SEMANTIC_CONFIG, "MODEL.RESNETS.STEM_TYPE basic", "build_dilated_resnet_backbone"),
        (SEMANTIC_CONFIG, "MODEL.CONTEXT.DILATIONS [1,2,3]", "CONTEXT.NAME ASP-OCR or ASPP alone"),
        (SEMANTIC_CONFIG, "MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT 5", "COARSE_LOSS_TYPE ohem alone"),
        (OCR_CONFIG, "SOLVER.POLY_LR_POWER 2.0", "LR_SCHEDULER_NAME WarmupPolyLR alone"),
        (OCR_CONFIG, "SOLVER.OPTIMIZER AdamW SOLVER.MOMENTUM 0.5", "with SOLVER.OPTIMIZER SGD"),
        (OCR_CONFIG, "SOLVER.LAYER_DECAY 0.9", "with MODEL.BACKBONE.NAME build_timm_backbone"),
        (OCR_CONFIG, "SOLVER.LAYER_DECAY 0.0", "LAYER_DECAY is 0.0; it is a number in (0, 1]"),
        (OCR_CONFIG, f"{TIMM} SOLVER.LAYER_DECAY 0.9", "with MODEL.TIMM.FROZEN False"),
        (OCR_CONFIG, f"{TIMM} MODEL.TIMM.DROP_PATH 0.9", "with MODEL.TIMM.FROZEN False"),
        (OCR_CONFIG, "SOLVER.BASE_LR_END 0.001", "with SOLVER.LR_SCHEDULER_NAME WarmupCosineLR"),
        (OCR_CONFIG, f"{COSINE} SOLVER.BASE_LR_END 2.0", "BASE_LR_END is 2.0; it"),
        (OCR_CONFIG, "SOLVER.OPTIMIZER Adam", "SOLVER.OPTIMIZER is Adam; it is one of SGD, AdamW"),
        (OCR_CONFIG, "TEST.PRECISION half", "is half; it is one of float32, bfloat16, float16"),
        (OCR_CONFIG, "MODEL.EMA.DECAY 0.5", "it is read with MODEL.EMA.ENABLED True"),
        (OCR_CONFIG, "MODEL.EMA.ENABLED True MODEL.EMA.DECAY 1.0", "it is a number in [0, 1)"),
        (OCR_CONFIG, FOUR, "3 values, and INPUT.CHANNELS is 4; each channel has"),
        (OCR_CONFIG, f"{FOUR} {MEANS}", "MODEL.PIXEL_STD is [57.375, 57.12, 58.395], 3 values"),
        (OCR_CONFIG, MEANS, "4 values, and INPUT.CHANNELS is 3"),
        (OCR_CONFIG, "INPUT.CHANNELS 0", "INPUT.CHANNELS is 0; it is one of 1, 3, 4"),
        (OCR_CONFIG, "SOLVER.HEAD_LR_FACTOR 0.0", "LR_FACTOR is 0.0; it is a number above 0"),
        (OCR_CONFIG, "MODEL.CONTEXT.NAME GT-OCR MODEL.CONTEXT.TRUE_PART all", "is all; it is one"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_keys_that_do_not_go_together(config, opts, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        complete_config(load_config(str(config), opts.split()))


def test_all_keys_that_nothing_reads_are_named():
    opts = ["TEST.SCALES", "[2.0]", "MODEL.SEM_SEG_HEAD.COARSE_KERNEL", "1"]
    with pytest.raises(ValueError, match=r"(?s)keys that nothing reads.*COARSE.*TEST\.SCALES"):
        complete_config(load_config(str(OCR_CONFIG), opts))


def test_the_head_alone_makes_the_plain_baseline(caplog):
    opts = ["MODEL.SEM_SEG_HEAD.NAME", "SemSegFPNHead", "MODEL.OCR.CHANNELS", "64"]
    complete_config(load_config(str(OCR_CONFIG), ["DATASETS.TEST", "()", *opts]))
    assert "MODEL.OCR.CHANNELS, MODEL.OCR.KEY_CHANNELS: set, but SemSegFPNHead" in caplog.text
