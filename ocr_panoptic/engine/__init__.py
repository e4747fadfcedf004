import ocr_panoptic.data.published.register  # noqa: F401 - registers published data sets
import ocr_panoptic.modeling  # noqa: F401 - registers networks, heads and backbones
from ocr_panoptic.program import run_program

from . import panoptic, segfix, semantic  # noqa: F401 - adds their tasks
from .config_files import load_config
from .launch import launch
from .setup import complete_config, setup
from .trained_model import build_trained_model
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
