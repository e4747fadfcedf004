from . import addresses  # noqa: F401 - registers timm:// and package://
from .checkpointer import SafeCheckpointer, last_checkpoint, newest_whole
from .matching import Demands, not_finite
from .published import LAYOUTS
from .reading import fetch_weights
from .settings import check_settings, differing_values, settings_of

__all__ = [
    "LAYOUTS",
    "Demands",
    "SafeCheckpointer",
    "check_settings",
    "differing_values",
    "fetch_weights",
    "last_checkpoint",
    "newest_whole",
    "not_finite",
    "settings_of",
]
