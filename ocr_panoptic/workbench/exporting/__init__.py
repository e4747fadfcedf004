"""Exports trained models as ONNX files; requires the extra "export"."""

from ocr_panoptic.errors import MissingPackageError

try:
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingPackageError(
        f"{error.name} is not installed, but an export needs it. Run: pip install onnx "
        "onnxruntime onnxscript"
    ) from error
