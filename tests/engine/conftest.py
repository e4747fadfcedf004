"""A prepared data set of a few small scenes, and a network that trains on it in seconds."""

from pathlib import Path

import pytest
from detectron2.engine import default_argument_parser

from ocr_panoptic.data import RawSplit, prepare_panoptic
from ocr_panoptic.data.scenes import generate_scenes

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
OCR_CONFIG = CONFIGS / "quick_schedules/panoptic_fpn_ocr_R_18_scenes.yaml"
PLAIN_CONFIG = CONFIGS / "quick_schedules/panoptic_fpn_R_18_scenes.yaml"

# A few iterations on 64-pixel images instead of minutes on 160.
TINY = [
    *("SOLVER.IMS_PER_BATCH", "2", "SOLVER.MAX_ITER", "3", "SOLVER.STEPS", "(2,)"),
    *("INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MIN_SIZE_TEST", "64"),
    *("MODEL.FPN.OUT_CHANNELS", "32", "MODEL.ROI_BOX_HEAD.FC_DIM", "32"),
    *("MODEL.ROI_MASK_HEAD.CONV_DIM", "32", "MODEL.SEM_SEG_HEAD.CONVS_DIM", "32"),
    *("MODEL.OCR.CHANNELS", "32", "MODEL.OCR.KEY_CHANNELS", "16"),
    *("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu"),
]


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory) -> Path:
    """A folder for DETECTRON2_DATASETS that holds tiny_train (8 scenes) and tiny_val (4)."""
    root = tmp_path_factory.mktemp("datasets")
    generate_scenes(root / "tiny", num_train=8, num_val=4, size=64, seed=1)
    splits = {}
    for split in ("train", "val"):
        raw = root / "tiny" / "raw" / split
        splits[split] = RawSplit(raw / "images", raw / "panoptic.json", raw / "panoptic")
    prepare_panoptic("tiny", splits, root / "tiny", workers=1)
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
        return default_argument_parser().parse_args(
            ["--config-file", str(config), *flags, *settings, *map(str, opts)]
        )

    return make
