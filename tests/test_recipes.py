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
    paths = [path for path in paths if "trainval" not in path.name]
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
