"""Trained models as ONNX files. Not imported by the rest of the package: :mod:`.run_onnx` needs
onnxruntime, which an extra brings."""

from .description import describe
from .onnx_file import export_onnx

__all__ = ["describe", "export_onnx"]
