"""The configs of semantic segmentation hold the numbers of the paper (section 4.2)."""

from pathlib import Path

import pytest
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog

from ocr_panoptic.data.semantic_augmentation import RandomMirror
from ocr_panoptic.data.semantic_datasets import NAMED_SPLITS
from ocr_panoptic.data.semantic_mapper import SemanticDatasetMapper
from ocr_panoptic.engine import complete_config, load_config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
STAGES = CONFIGS / "Cityscapes-SemanticSegmentation/stages"

# learning rate, weight decay, side of the crop, images of a batch, iterations
PAPER = {
    "Cityscapes": (0.01, 0.0005, 769, 8, 40_000),
    "ADE20K": (0.02, 0.0001, 520, 16, 150_000),
    "LIP": (0.007, 0.0005, 473, 32, 100_000),
    "PASCAL-Context": (0.001, 0.0001, 520, 16, 30_000),
    "COCO-Stuff": (0.001, 0.0001, 520, 16, 60_000),
    "Mapillary": (0.01, 0.0005, 1024, 16, 500_000),
}

SEMANTIC = sorted(
    path
    for name in PAPER
    for path in (CONFIGS / f"{name}-SemanticSegmentation").rglob("*.yaml")
    if not path.name.startswith("Base-") and path.parent.name != "ablations"
)


def load(path: Path) -> CfgNode:
    return load_config(str(path), ["MODEL.DEVICE", "cpu"])


def recipe(cfg: CfgNode) -> tuple:
    solver = cfg.SOLVER
    height, width = cfg.INPUT.CROP.SIZE
    assert height == width
    assert solver.WEIGHT_DECAY_NORM == solver.WEIGHT_DECAY
    return solver.BASE_LR, solver.WEIGHT_DECAY, height, solver.IMS_PER_BATCH, solver.MAX_ITER


@pytest.mark.parametrize("name", PAPER)
def test_numbers_of_the_paper(name):
    paths = sorted((CONFIGS / f"{name}-SemanticSegmentation").glob("[op]*.yaml"))
    # Not the paper's: its test server's data, and COCO-Stuff of all images.
    paths = [path for path in paths if not {"trainval", "164k"} & set(path.stem.split("_"))]
    backbones = {("R_101" in p.name, p.name.split("_")[0]) for p in paths}
    expected = {(False, "ocr"), (True, "ocr"), (False, "plain"), (True, "plain")}
    if name == "Mapillary":
        expected = {(False, "ocr")}
    elif name not in ("Cityscapes", "ADE20K"):
        expected -= {(False, "plain"), (True, "plain")}
    assert backbones == expected
    for path in paths:
        assert recipe(load(path)) == PAPER[name], path


@pytest.mark.parametrize("path", SEMANTIC, ids=lambda p: p.stem)
def test_what_all_recipes_share(path):
    cfg = load(path)
    assert (cfg.SOLVER.LR_SCHEDULER_NAME, cfg.SOLVER.POLY_LR_POWER) == ("WarmupPolyLR", 0.9)
    assert (cfg.SOLVER.MOMENTUM, cfg.SOLVER.WARMUP_ITERS) == (0.9, 0)
    assert cfg.MODEL.SEM_SEG_HEAD.LOSS_WEIGHT == 1.0
    assert cfg.MODEL.OCR.COARSE_LOSS_WEIGHT == 0.4
    assert (cfg.INPUT.FORMAT, cfg.INPUT.RANDOM_ASPECT) == ("RGB", [0.9, 1.1])
    assert pytest.approx([255 * m for m in (0.485, 0.456, 0.406)]) == cfg.MODEL.PIXEL_MEAN
    assert pytest.approx([255 * s for s in (0.229, 0.224, 0.225)]) == cfg.MODEL.PIXEL_STD
    is_lip = "LIP" in str(path)
    scales = cfg.INPUT.RANDOM_SCALE
    assert scales == ([0.5, 1.5] if is_lip else [0.5, 2.0])
    assert (cfg.INPUT.BRIGHTNESS_SHIFT, cfg.INPUT.RANDOM_FLIP) == (10, "horizontal")
    assert cfg.TEST.FLIP is is_lip
    assert not cfg.DATALOADER.ASPECT_RATIO_GROUPING  # batches are drawn from all images
    # The name tells the schedule, and the folder of the results is one of a kind.
    batch, thousands = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.MAX_ITER // 1000
    assert path.stem.endswith(f"_{thousands}k_bs{batch}")
    assert cfg.OUTPUT_DIR.endswith(path.stem)


@pytest.mark.parametrize("path", SEMANTIC, ids=lambda p: p.stem)
def test_data_and_their_augmentation_exist(path):
    for name in set(NAMED_SPLITS) & set(DatasetCatalog.list()):  # of other tests
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    cfg = load(path)
    complete_config(cfg, training=True)
    for name in (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST):
        assert len(NAMED_SPLITS[name].space.classes) == cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    augmentations = SemanticDatasetMapper(cfg, True).augmentations.augs
    (mirror,) = (a for a in augmentations if isinstance(a, RandomMirror))
    assert len(mirror.flip_pairs) == (3 if "LIP" in str(path) else 0)


# Published code: class weights (first and last), hard examples of the final loss (threshold, least
# number), short side in training and in tests, fixed size.
PUBLISHED = {
    "Cityscapes-SemanticSegmentation/ocr_R_101_d8_40k_bs8": ((0.8373, 1.0507), None, 0, []),
    "Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8": ((0.8373, 1.0507), None, 0, []),
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
    cfg = load(CONFIGS / f"{name}.yaml")
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
    resnets = load(
        CONFIGS / "ADE20K-SemanticSegmentation/ocr_R_101_d8_150k_bs16.yaml"
    ).MODEL.RESNETS
    assert (resnets.DEPTH, resnets.RES4_DILATION, resnets.RES5_DILATION) == (101, 2, 4)
    assert (resnets.STEM_TYPE, resnets.STEM_OUT_CHANNELS) == ("deeplab", 128)
    assert not resnets.STRIDE_IN_1X1


def test_folders_of_results_differ():
    folders = [load(path).OUTPUT_DIR for path in SEMANTIC]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize(
    "stages, rates, iterations",
    [
        *(
            (
                [f"../{net}_trainval_100k_bs8", f"{net}_coarse_50k_bs8"]
                + [f"{net}_coarse_trainval_20k_bs8"],
                [0.01, 0.001, 0.001],
                [100_000, 50_000, 20_000],
            )
            for net in ("ocr_R_101_d8", "ocr_HRNet_W48_s4")
        ),
        (
            [
                "../../Mapillary-SemanticSegmentation/ocr_HRNet_W48_s4_500k_bs16",
                "ocr_HRNet_W48_s4_mapillary_trainval_100k_bs8",
                "ocr_HRNet_W48_s4_mapillary_coarse_50k_bs8",
                "ocr_HRNet_W48_s4_mapillary_coarse_trainval_20k_bs8",
            ],
            [0.01, 0.001, 0.001, 0.001],
            [500_000, 100_000, 50_000, 20_000],
        ),
    ],
    ids=["coarse, R-101", "coarse, HRNet", "Mapillary, coarse"],
)
def test_stage_sequences(stages, rates, iterations):
    """Each stage starts with the last weights of the one before, in the order of the paper."""
    cfgs = [load(STAGES / f"{stage}.yaml") for stage in stages]
    assert [cfg.SOLVER.BASE_LR for cfg in cfgs] == rates
    assert [cfg.SOLVER.MAX_ITER for cfg in cfgs] == iterations
    for before, cfg in zip(cfgs, cfgs[1:]):
        weights = cfg.MODEL.WEIGHTS
        assert weights == f"{before.OUTPUT_DIR}/model_final.pth"
    data = [cfg.DATASETS.TRAIN[0] for cfg in cfgs[-3:]]
    assert data == [
        "cityscapes_fine_trainval_sem",
        "cityscapes_coarse_train_extra_sem",
        "cityscapes_fine_trainval_sem",
    ]
