"""A converted checkpoint in train_net.py, under the config of its conversion."""

import json
from pathlib import Path

import pytest
import torch

from support.published_networks import Weights, mmseg_hrnet
from support.scripts import load_script
from support.tiny_runs import CONFIGS, TINY_SEMANTIC
from train_net import main

RECIPE = CONFIGS / "Cityscapes-SemanticSegmentation/ocr_HRNet_W48_s4_40k_bs8.yaml"
NETWORK = [  # not that of TINY_SEMANTIC
    *("MODEL.TIMM.NAME", "hrnet_w18_small_v2", "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", 270),
    *("MODEL.OCR.CHANNELS", 512, "MODEL.OCR.KEY_CHANNELS", 256),
]
CLASSES = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "9", "MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS", "[]"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    """For the nine classes of the tiny data."""
    folder = tmp_path_factory.mktemp("converted")
    weights = Weights()
    with torch.no_grad():
        mmseg_hrnet(weights, torch.randn(1, 3, 64, 96), 18, 9, small=True)
    torch.save({"meta": {}, "state_dict": weights.tensors}, folder / "published.pth")
    files = [str(folder / "published.pth"), str(folder / "converted.pth")]
    config = ["--config-file", str(RECIPE), "--opts", *CLASSES]
    load_script("tools/convert_checkpoint.py").main(["--from", "mmseg", *files, *config])
    return folder / "converted.pth"


@pytest.mark.slow
def test_evaluation_and_training_go_on_from_it(converted, tiny_data, make_args, tmp_path):
    config = converted.with_suffix(".yaml")
    opts = [*TINY_SEMANTIC, *NETWORK, *CLASSES, "MODEL.WEIGHTS", converted]
    main(make_args(*opts, config=config, flags=("--eval-only",)))
    metrics = json.loads((tmp_path / "run/inference/tiny_sem_val/metrics.json").read_text())
    assert metrics["sem_seg"]["mIoU"] is not None
    with pytest.raises(ValueError, match="expect other settings"):
        main(make_args(*opts, "MODEL.ALIGN_CORNERS", True, config=config, flags=("--eval-only",)))

    main(make_args(*opts, "SOLVER.BASE_LR", 0.0, config=config))
    trained = torch.load(tmp_path / "run/model_final.pth", weights_only=True)["model"]
    started = torch.load(converted, weights_only=True)["model"]
    name = "sem_seg_head.context.g.weight"
    assert torch.equal(trained[name], started[name])  # with a rate of 0: started from it
    # What it was converted for stays with the weights that were trained from it.
    opts[-1] = tmp_path / "run/model_final.pth"
    main(make_args(*opts, config=config, flags=("--eval-only",)))
    with pytest.raises(ValueError, match="expect other settings"):
        main(make_args(*opts, "INPUT.FORMAT", "BGR", config=config, flags=("--eval-only",)))
