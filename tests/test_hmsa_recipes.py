"""The recipes of hierarchical multi-scale attention: epochs, schedule, losses, scales."""

import pytest

from support.loaded_configs import load

# Images of an epoch, epochs, crop, power of the schedule, scales in tests.
RECIPES = {
    "hmsa_HRNet_W48_cityscapes_65k_bs8": (2975, 175, [1024, 2048], 2.0, [0.5, 1.0, 2.0]),
    "hmsa_HRNet_W48_mapillary_225k_bs16": (18000, 200, [1024, 1024], 1.0, [0.25, 0.5, 1.0, 2.0]),
    "ocr_rmi_HRNet_W48_mapillary_225k_bs16": (18000, 200, [1024, 1024], 1.0, [1.0]),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name):
    images, epochs, crop, power, scales = RECIPES[name]
    cfg = load(f"HMSA/{name}")
    batch = cfg.SOLVER.IMS_PER_BATCH
    assert cfg.SOLVER.MAX_ITER * batch / images == pytest.approx(epochs, abs=0.1)
    assert (0.005, power) == (cfg.SOLVER.BASE_LR, cfg.SOLVER.POLY_LR_POWER)
    assert cfg.SOLVER.WEIGHT_DECAY == cfg.SOLVER.WEIGHT_DECAY_NORM == 1e-4
    assert cfg.SOLVER.HEAD_LR_FACTOR == 1.0
    head = cfg.MODEL.SEM_SEG_HEAD
    assert head.LOSS_TYPE == "0.5 binary_cross_entropy + 0.5 rmi"
    assert head.COARSE_LOSS_TYPE == "binary_cross_entropy"
    assert cfg.MODEL.OCR.COARSE_LOSS_WEIGHT == 0.4
    assert cfg.MODEL.HMSA.ENABLED is (len(scales) > 1)
    if cfg.MODEL.HMSA.ENABLED:
        assert (0.05 if "cityscapes" in name else 0.0) == cfg.MODEL.HMSA.SCALE_LOSS_WEIGHT
    assert (crop, scales) == (cfg.INPUT.CROP.SIZE, cfg.TEST.SCALES)
    assert (cfg.INPUT.RANDOM_SCALE, cfg.INPUT.RANDOM_ASPECT) == ([0.5, 2.0], [1.0, 1.0])
    assert not head.CLASS_WEIGHTS and not cfg.MODEL.ALIGN_CORNERS


def test_cityscapes_starts_from_the_plain_network():
    cityscapes, plain = (load(f"HMSA/{name}") for name in (list(RECIPES)[0], list(RECIPES)[2]))
    assert f"{plain.OUTPUT_DIR}/model_final.pth" == cityscapes.MODEL.WEIGHTS
