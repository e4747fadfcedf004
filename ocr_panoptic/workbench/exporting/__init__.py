"""
Export of trained models as ONNX files.

It needs the packages of the extra "export", so the rest of the package does not import it. A copy
of :mod:`.run_onnx` needs only onnxruntime.
"""

from ocr_panoptic.errors import MissingPackageError

try:
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingPackageError(
        f"{error.name} is not installed, which an export needs: pip install onnx onnxruntime "
        "onnxscript"
    ) from error

from .onnx_file import describe, export_onnx

__all__ = ["describe", "export_onnx"]
