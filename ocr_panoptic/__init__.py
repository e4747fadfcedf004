"""
Object-contextual representations (OCR) for panoptic and semantic segmentation in Detectron2.

    import ocr_panoptic
    model = ocr_panoptic.load("output/city")
    result = model.predict("street.jpg")

docs/python.md describes the functions. ``import ocr_panoptic`` is fast: PyTorch and Detectron2 are
imported when a function is first used.
"""

import importlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocr_panoptic.config.keys import add_ocr_config
    from ocr_panoptic.predict.model import Model, build, load
    from ocr_panoptic.predict.result import Result

    from .cli.check import check
    from .cli.evaluate import evaluate
    from .cli.export import export
    from .cli.plan import plan
    from .cli.train import train

__version__ = "0.2.0"

__all__ = [
    "Model",
    "Result",
    "__version__",
    "add_ocr_config",
    "build",
    "check",
    "evaluate",
    "export",
    "load",
    "plan",
    "train",
]

# Detectron2 and timm use deprecated parts of PyTorch, so every import and prediction would warn.
warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", FutureWarning)
warnings.filterwarnings("ignore", r"torch\.meshgrid: ", UserWarning)
logging.getLogger("torch.fx._symbolic_trace").addFilter(
    lambda record: not record.getMessage().startswith("is_fx_tracing will return true")
)

_MODULES = {
    "Model": "predict.model",
    "Result": "predict.result",
    "add_ocr_config": "config",
    "build": "predict.model",
    "load": "predict.model",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        importlib.import_module(f"{__name__}.predict")  # registers networks, weights and data
    except ModuleNotFoundError as error:
        from .errors import MissingPackageError
        from .program import explained

        if how_to_install := explained(error):
            raise MissingPackageError(how_to_install) from None
        raise
    module = _MODULES.get(name, f"cli.{name}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
