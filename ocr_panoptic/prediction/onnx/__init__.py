"""Trained models as ONNX files. Nothing else of the package imports it, as it needs the packages of
the extra "export". :mod:`.run_onnx`, copied away, needs onnxruntime alone of them."""

try:
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingPackageError(
        f"{error.name} is not installed, which an export needs: pip install onnx onnxruntime "
        "onnxscript"
    ) from error

from ocr_panoptic.errors import MissingPackageError

from .description import describe
from .onnx_file import export_onnx

__all__ = ["describe", "export_onnx"]
