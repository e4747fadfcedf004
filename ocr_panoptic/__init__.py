"""Object-contextual representations (OCR) for panoptic and semantic segmentation in Detectron2."""

from .waiting import importing

with importing("PyTorch and Detectron2"):
    # Importing modeling registers the heads with Detectron2.
    from . import modeling  # noqa: F401
    from .config import add_ocr_config

__version__ = "0.1.0"

__all__ = ["__version__", "add_ocr_config"]
