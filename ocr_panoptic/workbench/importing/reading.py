"""Parts that readers of annotations share: faults of single images, files by the names that they
give."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ocr_panoptic.data.faults import DataFaults, gathering, raise_if_any
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.data.semantic.records import IMAGE_SUFFIXES
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable, read_json
from ocr_panoptic.formats.pictures import header_size

from .annotated_image import AnnotatedImage

MAX_FILE_BYTES = 256 << 20  # of a file that has a single image's annotation

# Label Studio's, before the name of a file that was uploaded.
UPLOAD_PREFIX = re.compile("^[0-9a-f]{8}-")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(items: Iterable[_Item], read: Callable[[_Item], _Result]) -> Iterator[_Result]:
    """``read(item)`` of all items, one at a time.

    Raises:
        DataFaults: at the end, all that ``read`` has raised: DataFaults, or a ValueError or OSError
            whose message names the file.
    """
    faults: list[str] = []
    for item in items:
        with gathering(faults):
            try:
                result = read(item)
            except DataFaults:
                raise
            except (ValueError, OSError) as error:
                raise DataFaults([str(error)]) from error
            yield result
    raise_if_any(faults)


def shapes_of(
    shapes: Iterable[tuple[str, _Item]], read: Callable[[_Item], _Result | None]
) -> list[_Result]:
    """``read(shape)`` of the shapes of one image, but where it is None.

    Args:
        shapes: each with its place, for messages.

    Raises:
        DataFaults: all that ``read`` has raised as ValueError, with their places.
    """
    faults, found = [], []
    for place, shape in shapes:
        try:
            found.append(read(shape))
        except ValueError as error:
            faults.append(f"{place}: {error}.")
    raise_if_any(faults)
    return [result for result in found if result is not None]


def image_file(folder: Path, names: Sequence[object], source: str) -> AnnotatedImage:
    """The image that has the first of the names that is there, without segments.

    Args:
        names: relative to the folder, the first as a file of annotations says it.
        source: names the file and the place in it, for messages.

    Raises:
        ValueError: the first name leads out of the folder or is none; there is no such file, or it
            is no image that can be read.
    """
    for fault in file_name_faults(names[0]):
        raise UserError(f"{source}: {fault}")
    inside = (name for name in names if not any(file_name_faults(name)))
    name = next((name for name in inside if (folder / name).is_file()), None)
    if name is None:
        others = f", nor any of {len(names) - 1} other names" if len(names) > 1 else ""
        raise UserError(
            f"{source}: {printable(folder / names[0])} not found{others}. Is {folder} the right "
            "folder?"
        )
    file = folder / name
    try:
        size = header_size(file)
    except ValueError as error:
        raise UserError(f"{printable(file)}: the image {error}.") from error
    return AnnotatedImage(file, name, size.height, size.width)


def names_of_upload(name: object) -> list[object]:
    """The name, and that of the file before Label Studio had it."""
    if not isinstance(name, str):
        return [name]
    folder, _, last = name.rpartition("/")
    return list(dict.fromkeys([name, os.path.join(folder, UPLOAD_PREFIX.sub("", last))]))


def image_with_stem(folder: Path, stems: Sequence[str], source: str) -> AnnotatedImage:
    """The image that has one of the names, but for its suffix; the first that is there.

    Args:
        source: names the file of annotations, for messages.

    Raises:
        ValueError: as :func:`image_file`.
    """
    ends = [end for suffix in IMAGE_SUFFIXES for end in (suffix, suffix.upper())]
    return image_file(folder, [f"{stem}{end}" for stem in stems for end in ends], source)


def check_size(image: AnnotatedImage, height: object, width: object, source: str) -> None:
    """
    Raises:
        ValueError: the annotations give the image another size than it has, or none.
    """
    if height is None or width is None:
        raise UserError(f"{source}: does not say the image's width and height.")
    if (height, width) != (image.height, image.width):
        raise UserError(
            f"{source}: is of {printable(width)}x{printable(height)} pixels, the image "
            f"{printable(image.file)} of {image.width}x{image.height} (width x height)"
            f"{header_size(image.file).note}."
        )


def files_below(folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> list[Path]:
    """Files that end in one of the suffixes, hidden ones left out, in the order of their names.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: none is there.
    """
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: folder not found.")
    ends = tuple(suffix.lower() for suffix in suffixes)
    found = [
        Path(root, name)
        for root, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(ends) and not name.startswith(".")
    ]
    if not found:
        raise UserError(f"{folder}: no file that ends in {', '.join(suffixes)}.")
    return sorted(found)


def read_object(
    path: Path, limit: int = MAX_FILE_BYTES, of_object: Callable[[dict], dict] | None = None
) -> dict:
    """The JSON object of a file, see :func:`.read_json`.

    Raises:
        FileNotFoundError, ValueError: there is none.
    """
    content = read_json(path, limit, of_object)
    if not isinstance(content, dict):
        raise UserError(f"{path}: is no JSON object.")
    return content


def require_images(images: Path | None, what: str) -> Path:
    """
    Raises:
        ValueError: the folder of images was not given.
        FileNotFoundError: there is no such folder.
    """
    if images is None:
        raise UserError(f"{what} does not say where the images lie: give their folder after it.")
    if not images.is_dir():
        raise MissingFileError(f"{images}: folder of images not found.")
    return images
