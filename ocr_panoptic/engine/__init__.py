import ocr_panoptic.data.published.register  # noqa: F401 - registers published data sets
import ocr_panoptic.modeling  # noqa: F401 - registers networks, heads and backbones
from ocr_panoptic.config.unread import load_config
from ocr_panoptic.predict import panoptic, segfix, semantic  # noqa: F401 - adds their tasks
from ocr_panoptic.predict.trained_model import build_trained_model
from ocr_panoptic.program import run_program

from .launch import launch
from .setup import complete_config, setup
from .trainer import Trainer

__all__ = [
    "Trainer",
    "build_trained_model",
    "complete_config",
    "launch",
    "load_config",
    "run_program",
    "setup",
]
