from . import addresses, published_models  # register timm:// and package://, names of models
from .checkpointer import SafeCheckpointer, last_checkpoint
from .matching import Demands
from .published import LAYOUTS
from .reading import fetch_weights
from .settings import check_settings

__all__ = [
    "LAYOUTS",
    "Demands",
    "SafeCheckpointer",
    "check_settings",
    "fetch_weights",
    "last_checkpoint",
]
