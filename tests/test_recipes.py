"""The configs of semantic segmentation hold the numbers of the paper (section 4.2)."""

import shlex
from string import Template

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.modeling import build_model

from ocr_panoptic.data.published.splits import NAMED_SPLITS
from ocr_panoptic.data.semantic.augmentation import RandomMirror
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.engine import Trainer, complete_config
from ocr_panoptic.engine.offset_mapper import OffsetDatasetMapper
from support.loaded_configs import NAMES, load
from support.tiny_runs import ROOT

CITYSCAPES = "Cityscapes-SemanticSegmentation"

# learning rate, weight decay, side of the crop, images of a batch, iterations
PAPER = {
    "Cityscapes": (0.01, 0.0005, 769, 8, 40_000),
    "ADE20K": (0.02, 0.0001, 520, 16, 150_000),
    "LIP": (0.007, 0.0005, 473, 32, 100_000),
    "PASCAL-Context": (0.001, 0.0001, 520, 16, 30_000),
    "COCO-Stuff": (0.001, 0.0001, 520, 16, 60_000),
    "Mapillary": (0.01, 0.0005, 1024, 16, 500_000),
}

OF_PAPER = [name for name in NAMES if name.partition("-SemanticSegmentation")[0] in PAPER]
SEMANTIC = [name for name in OF_PAPER if "HRNet" in name or "R_101" in name]
# Of mmsegmentation, Mask2Former and DINOv2: rate, decay, drop path, layer decay, crop, batch,
# iterations. A rate of 0.9 by stage leaves 0.48 to the first layers, of 19.
LATER = {
    "ADE20K-SemanticSegmentation/ocr_ConvNeXt_T_s4_160k_bs16": (
        *(1e-4, 0.05, 0.4, pytest.approx(0.9 ** (7 / 19), abs=0.003), [512, 512], 16, 160_000),
    ),
    "ADE20K-SemanticSegmentation/ocr_Swin_T_s4_160k_bs16": (
        *(6e-5, 0.01, 0.3, 1.0, [512, 512], 16, 160_000),
    ),
    "ADE20K-SemanticSegmentation/ocr_DINOv2_B_s14_40k_bs16": (
        *(1e-3, 0.0001, 0.0, 1.0, [512, 512], 16, 40_000),
    ),
    "Cityscapes-SemanticSegmentation/ocr_ConvNeXt_T_s4_90k_bs16": (
        *(1e-4, 0.05, 0.4, pytest.approx(0.9 ** (7 / 19), abs=0.003), [512, 1024], 16, 90_000),
    ),
    "Cityscapes-SemanticSegmentation/ocr_Swin_T_s4_90k_bs16": (
        *(6e-5, 0.01, 0.3, 1.0, [512, 1024], 16, 90_000),
    ),
}
# Of mmdetection and ViT-Adapter, of 16 images: rate, decay, drop path, layer decay.
PANOPTIC = {
    "ConvNeXt_T": (1e-4, 0.05, 0.4, pytest.approx(0.95 ** (7 / 19), abs=0.002)),
    "Swin_T": (1e-4, 0.05, 0.2, 1.0),
    "DINOv2_B": (1e-4, 0.05, 0.3, 0.7),
}


def test_recipes_of_later_networks():
    assert LATER.keys() == set(OF_PAPER) - set(SEMANTIC)
    for name, expected in LATER.items():
        cfg = load(name)
        solver, crop = cfg.SOLVER, cfg.INPUT.CROP
        schedule = (crop.SIZE, solver.IMS_PER_BATCH, solver.MAX_ITER)
        assert (*rates(cfg), *schedule) == expected, name
        assert (solver.LR_SCHEDULER_NAME, solver.POLY_LR_POWER) == ("WarmupPolyLR", 1.0)
        assert (solver.WARMUP_ITERS, solver.WARMUP_FACTOR) == (1500, 1e-6)
        assert crop.SINGLE_CATEGORY_MAX_AREA == 0.75 and cfg.INPUT.RANDOM_SCALE == [0.5, 2.0]
        assert name.endswith(f"_{solver.MAX_ITER // 1000}k_bs16")
    for name, expected in PANOPTIC.items():
        cfg = load(f"COCO-PanopticSegmentation/panoptic_fpn_ocr_{name}_3x")
        assert rates(cfg) == expected, name
        assert (cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.MAX_ITER) == (16, 270_000)
        assert tuple(range(480, 801, 32)) == cfg.INPUT.MIN_SIZE_TRAIN


def rates(cfg: CfgNode) -> tuple:
    solver = cfg.SOLVER
    assert (solver.OPTIMIZER, solver.WEIGHT_DECAY_NORM) == ("AdamW", 0.0)
    assert cfg.MODEL.WEIGHTS.startswith(f"timm://{cfg.MODEL.TIMM.NAME}.")
    return solver.BASE_LR, solver.WEIGHT_DECAY, cfg.MODEL.TIMM.DROP_PATH, solver.LAYER_DECAY


def recipe(cfg: CfgNode) -> tuple:
    solver = cfg.SOLVER
    height, width = cfg.INPUT.CROP.SIZE
    assert height == width
    assert solver.WEIGHT_DECAY_NORM == solver.WEIGHT_DECAY
    return solver.BASE_LR, solver.WEIGHT_DECAY, height, solver.IMS_PER_BATCH, solver.MAX_ITER


@pytest.mark.parametrize("data", PAPER)
def test_numbers_of_the_paper(data):
    folder = f"{data}-SemanticSegmentation/"
    names = [name for name in SEMANTIC if name.startswith(folder) and "mapillary" not in name]
    # Not the paper's: its test server's data, and COCO-Stuff of all images.
    names = [name for name in names if not {"trainval", "164k"} & set(name.split("_"))]
    networks = ["HRNet_W48_s4"] if data == "Mapillary" else ["HRNet_W48_s4", "R_101_d8"]
    schemes = ["ocr", "plain"] if data in ("Cityscapes", "ADE20K") else ["ocr"]
    kinds = [name.removeprefix(folder).rsplit("_", 2)[0].removesuffix("_10k") for name in names]
    assert sorted(kinds) == [f"{s}_{n}" for s in schemes for n in networks]
    for name in names:
        assert recipe(load(name)) == PAPER[data], name


@pytest.mark.parametrize("data", ["Cityscapes", "ADE20K", "LIP", "PASCAL-Context", "COCO-Stuff"])
def test_learning_rates_of_the_published_code(data):
    """Rates of a built optimizer are tenfold outside the backbone on two of the data sets."""
    tenfold = data in ("PASCAL-Context", "COCO-Stuff")
    names = [n for n in SEMANTIC if n.startswith(data)]
    assert {load(n).SOLVER.HEAD_LR_FACTOR for n in names} == {10.0 if tenfold else 1.0}
    cfg = load(next(n for n in names if "ocr_R_101" in n)).clone()
    cfg.defrost()
    cfg.MODEL.DEVICE = "meta"
    with torch.device("meta"):
        model = build_model(cfg)
    optimizer = Trainer.build_optimizer(cfg, model)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    base = PAPER[data][0]
    for name, parameter in model.named_parameters():
        head = not name.startswith("backbone.")
        assert rates.pop(id(parameter)) == pytest.approx(10 * base if head and tenfold else base)
    assert not rates


@pytest.mark.parametrize("name", SEMANTIC)
def test_what_all_recipes_share(name):
    cfg = load(name)
    assert (cfg.SOLVER.LR_SCHEDULER_NAME, cfg.SOLVER.POLY_LR_POWER) == ("WarmupPolyLR", 0.9)
    assert (cfg.SOLVER.MOMENTUM, cfg.SOLVER.WARMUP_ITERS) == (0.9, 0)
    assert cfg.MODEL.SEM_SEG_HEAD.LOSS_WEIGHT == 1.0
    assert cfg.MODEL.OCR.COARSE_LOSS_WEIGHT == 0.4
    assert 0 < cfg.MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD <= 1
    assert (cfg.INPUT.FORMAT, cfg.INPUT.RANDOM_ASPECT) == ("RGB", [0.9, 1.1])
    assert pytest.approx([255 * m for m in (0.485, 0.456, 0.406)]) == cfg.MODEL.PIXEL_MEAN
    assert pytest.approx([255 * s for s in (0.229, 0.224, 0.225)]) == cfg.MODEL.PIXEL_STD
    is_lip = name.startswith("LIP")
    assert ([0.5, 1.5] if is_lip else [0.5, 2.0]) == cfg.INPUT.RANDOM_SCALE
    assert (cfg.INPUT.BRIGHTNESS_SHIFT, cfg.INPUT.RANDOM_FLIP) == (10, "horizontal")
    assert cfg.TEST.FLIP is is_lip
    assert not cfg.DATALOADER.ASPECT_RATIO_GROUPING  # batches are drawn from all images
    assert cfg.CUDNN_BENCHMARK and cfg.INPUT.CROP.ENABLED and cfg.INPUT.CROP.TYPE == "absolute"
    # The name tells the schedule, and the folder of the results has it.
    batch, thousands = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.MAX_ITER // 1000
    assert name.endswith(f"_{thousands}k_bs{batch}")
    assert cfg.OUTPUT_DIR.endswith(name.rpartition("/")[2])


@pytest.mark.parametrize("name", OF_PAPER)
def test_data_and_their_augmentation_exist(name):
    for split in set(NAMED_SPLITS) & set(DatasetCatalog.list()):  # of other tests
        DatasetCatalog.remove(split)
        MetadataCatalog.remove(split)
    cfg = load(name).clone()
    cfg.defrost()
    complete_config(cfg, training=True)
    for split in (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST):
        assert len(NAMED_SPLITS[split].space.classes) == cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    augmentations = SemanticDatasetMapper(cfg, True).augmentations.augs
    (mirror,) = (a for a in augmentations if isinstance(a, RandomMirror))
    assert len(mirror.flip_pairs) == (3 if "lip_train_sem" in cfg.DATASETS.TRAIN else 0)


# Published code: class weights (first and last), hard examples of the final loss (threshold, least
# number), short side in training and in tests, fixed size.
PUBLISHED = {
    f"{CITYSCAPES}/ocr_R_101_d8_40k_bs8": ((0.8373, 1.0507), None, 0, []),
    f"{CITYSCAPES}/ocr_HRNet_W48_s4_40k_bs8": ((0.8373, 1.0507), None, 0, []),
    "ADE20K-SemanticSegmentation/ocr_R_101_d8_150k_bs16": ((), None, 520, []),
    "ADE20K-SemanticSegmentation/ocr_HRNet_W48_s4_150k_bs16": ((), (0.9, 100_000), 520, []),
    "LIP-SemanticSegmentation/ocr_HRNet_W48_s4_100k_bs32": ((), None, 0, [473, 473]),
    "PASCAL-Context-SemanticSegmentation/ocr_HRNet_W48_s4_30k_bs16": ((), None, 520, []),
    "COCO-Stuff-SemanticSegmentation/ocr_HRNet_W48_s4_10k_60k_bs16": (
        *((), (0.9, 100_000)),
        *(520, []),
    ),
    "COCO-Stuff-SemanticSegmentation/ocr_R_101_d8_10k_60k_bs16": ((), None, 520, []),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_paper_leaves_open_is_the_published_codes(name):
    weights, hard, side, fixed = PUBLISHED[name]
    cfg = load(name)
    head = cfg.MODEL.SEM_SEG_HEAD
    ends = (head.CLASS_WEIGHTS[0], head.CLASS_WEIGHTS[-1]) if head.CLASS_WEIGHTS else ()
    assert ends == weights
    if hard:
        assert ("ohem", *hard) == (head.LOSS_TYPE, head.OHEM_THRESHOLD, head.OHEM_MIN_KEPT)
    else:
        assert head.LOSS_TYPE == "cross_entropy"
    assert (*cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.MIN_SIZE_TEST) == (side, side)
    assert fixed == cfg.INPUT.FIXED_SIZE


def test_dilated_resnet_has_stride_8():
    resnets = load("ADE20K-SemanticSegmentation/ocr_R_101_d8_150k_bs16").MODEL.RESNETS
    assert (resnets.DEPTH, resnets.RES4_DILATION, resnets.RES5_DILATION) == (101, 2, 4)
    assert (resnets.STEM_TYPE, resnets.STEM_OUT_CHANNELS) == ("deeplab", 128)
    assert not resnets.STRIDE_IN_1X1


def test_folders_of_results_differ():
    folders = [load(name).OUTPUT_DIR for name in NAMES if not name.startswith("Custom-Panoptic")]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize(
    "heading, network, rates",
    [
        ("Cityscapes with coarse data", "R_101_d8", [0.01, 0.001, 0.001]),
        ("Cityscapes with coarse data", "HRNet_W48_s4", [0.01, 0.001, 0.001]),
        ("Mapillary Vistas, then", "HRNet_W48_s4", [0.01, 0.001, 0.001, 0.001]),
    ],
)
def test_stage_sequences(heading, network, rates):
    """The documented trainings: each starts with the last weights of the one before, in the order
    of the paper."""
    block = (ROOT / "docs/semantic_segmentation.md").read_text().partition(f"### {heading}")[2]
    block = block[block.index("    CFG=") :].partition("\n\n")[0]
    lines = block.replace("\\\n", "").replace("R_101_d8", network).splitlines()
    variables = dict(line.strip().split("=") for line in lines if "train_net" not in line)
    cfgs = []
    for line in lines:
        if "train_net" in line:
            words = shlex.split(Template(line).substitute(variables))
            words = words[words.index("--config-file") + 1 :]
            cfgs.append(load(words[0].removeprefix("configs/").removesuffix(".yaml"), *words[1:]))
    assert [cfg.SOLVER.BASE_LR for cfg in cfgs] == rates
    assert [cfg.SOLVER.MAX_ITER for cfg in cfgs[-3:]] == [100_000, 50_000, 20_000]
    assert (500_000 if len(cfgs) == 4 else 100_000) == cfgs[0].SOLVER.MAX_ITER
    for before, after in zip(cfgs, cfgs[1:]):
        assert f"{before.OUTPUT_DIR}/model_final.pth" == after.MODEL.WEIGHTS
    assert [cfg.DATASETS.TRAIN[0] for cfg in cfgs[-3:]] == [
        "cityscapes_fine_trainval_sem",
        "cityscapes_coarse_train_extra_sem",
        "cityscapes_fine_trainval_sem",
    ]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("SegFix/")])
def test_segfix_is_trained_as_the_published_code_does(name):
    """Facts of its scripts and of H_SEGFIX.json; own data have a batch and rate of one GPU."""
    cfg = load(name)
    images, rate, iterations = (4, 0.01, 40_000) if "custom" in name else (16, 0.04, 80_000)
    assert recipe(cfg) == (rate, 0.0005, 512, images, iterations)
    assert (cfg.SOLVER.LR_SCHEDULER_NAME, cfg.SOLVER.POLY_LR_POWER) == ("WarmupPolyLR", 0.9)
    assert (cfg.SOLVER.MOMENTUM, cfg.SOLVER.WARMUP_ITERS) == (0.9, 0)
    assert (cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.RANDOM_SCALE) == ((0,), [1.0, 1.0])
    assert (cfg.INPUT.BRIGHTNESS_SHIFT, cfg.INPUT.RANDOM_FLIP) == (10, "horizontal")
    assert (cfg.MODEL.SEGFIX.BOUNDARY_DISTANCE, cfg.MODEL.SEGFIX.CHANNELS) == (5, 256)
    if "cityscapes" in name:
        assert (cfg.TEST.SLIDING_WINDOW.SIZE, cfg.TEST.SLIDING_WINDOW.STRIDE) == (
            [512, 512],
            [170, 170],
        )
    cfg = cfg.clone()
    cfg.defrost()
    complete_config(cfg, training=True)
    if "custom" not in name:
        OffsetDatasetMapper(cfg, True)
