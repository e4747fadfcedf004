"""Read MATLAB files with SciPy."""

from pathlib import Path

import numpy as np

from ocr_panoptic.errors import MissingFileError, MissingPackageError, UserError


def read_variable(path: Path, name: str) -> np.ndarray:
    """Return a variable of a MATLAB file."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MissingPackageError(
            "Reading MATLAB files needs SciPy: pip install scipy. Nothing else does."
        ) from None
    if not path.is_file():
        raise MissingFileError(f"{path}: file not found.")
    try:
        content = loadmat(path)
    except Exception as error:  # SciPy raises various errors for broken bytes
        raise UserError(f"{path}: is broken or not a MATLAB file ({error}).") from error
    if name not in content:
        found = ", ".join(sorted(name for name in content if not name.startswith("__")))
        raise UserError(f"{path}: has no variable {name!r}; found {found or 'none'}.")
    return content[name]
