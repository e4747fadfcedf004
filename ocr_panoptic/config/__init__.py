"""The config: the keys that this project adds, the rules for them, and the files that set them."""

from .keys import add_ocr_config

__all__ = ["add_ocr_config"]
