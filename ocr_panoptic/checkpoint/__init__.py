from .checkpointer import SafeCheckpointer
from .convert_file import convert_file
from .published import LAYOUTS
from .settings import check_settings, settings_of

__all__ = ["LAYOUTS", "SafeCheckpointer", "check_settings", "convert_file", "settings_of"]
