"""train_net.py on a config of SegFix, with both kinds of data."""

import json

import pytest

from support.tiny_runs import CONFIGS
from train_net import argument_parser, main

pytestmark = pytest.mark.slow

CONFIG = str(CONFIGS / "quick_schedules/segfix_R_18_scenes.yaml")


@pytest.mark.parametrize("data", ["tiny", "tiny_sem"])
def test_a_run_and_its_metrics(data, tiny_data, tmp_path):
    opts = [
        *("DATASETS.TRAIN", f"('{data}_train',)", "DATASETS.TEST", f"('{data}_val',)"),
        *("SOLVER.MAX_ITER", "3", "SOLVER.IMS_PER_BATCH", "2", "INPUT.CROP.SIZE", "[48, 48]"),
        *("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu", "MODEL.SEGFIX.CHANNELS", "16"),
        *("MODEL.TIMM.NAME", "test_resnet"),
        *("TEST.BEST_CHECKPOINT", "offsets/F1", "OUTPUT_DIR", str(tmp_path)),
    ]
    main(argument_parser().parse_args(["--config-file", CONFIG, *opts]))
    lines = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    assert any({"loss_boundary", "loss_direction"} <= set(line) for line in lines)
    found = json.loads((tmp_path / f"inference/{data}_val/metrics.json").read_text())
    assert set(found["offsets"]) == {"F1", "precision", "recall", "direction_ACC"}
    assert all(0 <= value <= 100 for value in found["offsets"].values())
    assert (tmp_path / "model_best.pth").exists()
