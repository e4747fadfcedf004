"""A prepared data set of a few small scenes, and a network that trains on it in seconds."""

from pathlib import Path

import pytest
import torch
from fvcore.nn import weight_init
from torch import nn

from ocr_panoptic.data import RawSplit, SemanticSplit, prepare_panoptic, prepare_semantic
from ocr_panoptic.data.scenes import generate_scenes
from train_net import argument_parser

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
OCR_CONFIG = CONFIGS / "quick_schedules/panoptic_fpn_ocr_R_18_scenes.yaml"
PLAIN_CONFIG = CONFIGS / "quick_schedules/panoptic_fpn_R_18_scenes.yaml"
SEMANTIC_CONFIG = CONFIGS / "quick_schedules/semantic_ocr_R_18_scenes.yaml"

# A few iterations on 64-pixel images instead of minutes on 160.
TINY = [
    *("SOLVER.IMS_PER_BATCH", "2", "SOLVER.MAX_ITER", "3", "SOLVER.STEPS", "(2,)"),
    *("INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MIN_SIZE_TEST", "64"),
    *("MODEL.FPN.OUT_CHANNELS", "32", "MODEL.ROI_BOX_HEAD.FC_DIM", "32"),
    *("MODEL.ROI_MASK_HEAD.CONV_DIM", "32", "MODEL.SEM_SEG_HEAD.CONVS_DIM", "32"),
    *("MODEL.OCR.CHANNELS", "32", "MODEL.OCR.KEY_CHANNELS", "16"),
    *("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu"),
]
# Besides, for semantic segmentation alone.
TINY_SEMANTIC = [
    *("INPUT.CROP.SIZE", "[48, 48]", "INPUT.MIN_SIZE_TRAIN", "(0,)", "INPUT.MIN_SIZE_TEST", "0"),
    *("DATASETS.TRAIN", "('tiny_sem_train',)", "DATASETS.TEST", "('tiny_sem_val',)"),
]


def make_labels_vary(model: nn.Module, record: dict) -> None:
    """An untrained head with large weights, and classifiers that prefer no class on this image:
    its labels and its relation differ between pixels."""
    head, means = model.sem_seg_head, {}
    for module in head.modules():
        if isinstance(module, nn.Conv2d):
            weight_init.c2_msra_fill(module)
    parts = [getattr(head, n, None) for n in ("coarse_predictor", "predictor", "ocr_predictor")]
    hooks = [
        part.register_forward_hook(
            lambda module, _, output: means.update({module: output.mean(dim=(0, 2, 3))})
        )
        for part in parts
        if part is not None
    ]
    with torch.no_grad():
        model([record])
        for hook, (part, mean) in zip(hooks, means.items(), strict=True):
            hook.remove()
            part.bias -= mean


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory) -> Path:
    """A folder for DETECTRON2_DATASETS that holds tiny_train (8 scenes) and tiny_val (4), and
    their semantic labels as tiny_sem_train and tiny_sem_val."""
    root = tmp_path_factory.mktemp("datasets")
    generate_scenes(root / "tiny", num_train=8, num_val=4, size=64, seed=1)
    splits = {}
    for split in ("train", "val"):
        raw = root / "tiny" / "raw" / split
        splits[split] = RawSplit(raw / "images", raw / "panoptic.json", raw / "panoptic")
    prepare_panoptic("tiny", splits, root / "tiny", workers=1)
    raw = root / "tiny/raw"
    labels = {s: SemanticSplit(raw / s / "images", raw / s / "semantic") for s in ("train", "val")}
    prepare_semantic("tiny_sem", raw / "classes.json", labels, root / "tiny_sem", workers=1)
    return root


@pytest.fixture
def tiny_data(tiny_root, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tiny_root))
    return tiny_root


@pytest.fixture
def make_args(tmp_path):
    """Factory: the arguments of train_net.py for a tiny run."""

    def make(*opts: object, config: Path = OCR_CONFIG, flags: tuple[str, ...] = ()):
        settings = ["OUTPUT_DIR", str(tmp_path / "run"), *TINY]
        settings += ["DATASETS.TRAIN", "('tiny_train',)", "DATASETS.TEST", "('tiny_val',)"]
        return argument_parser().parse_args(
            ["--config-file", str(config), *flags, *settings, *map(str, opts)]
        )

    return make
