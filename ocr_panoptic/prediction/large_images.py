"""Images that are read and results that are written row by row. H, W: size of the image."""

import sys
import warnings
from pathlib import Path

from PIL import Image


def pixel_count(path: Path) -> int:
    """
    Width times height from the header; more than any limit where Pillow refuses to open it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no image.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                return picture.width * picture.height
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: image not found") from None
    except Image.DecompressionBombError:
        return sys.maxsize
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as an image ({error})") from error
