"""What readers of annotations share: faults of single images, files by the names that they give."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ocr_panoptic.data.faults import DataFaults, gathering, raise_if_any
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.data.semantic.records import IMAGE_SUFFIXES
from ocr_panoptic.files import printable, read_json
from ocr_panoptic.pictures import header_size

MAX_JSON_BYTES = 4 << 30  # of a JSON that has all images; COCO's largest has 450 MB
MAX_FILE_BYTES = 256 << 20  # of a file that has a single image's annotation

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ImageFile:
    """An image that exists, its name below the folder of all, and its size in pixels."""

    file: Path
    name: str
    height: int
    width: int


def each(items: Iterable[Item], read: Callable[[Item], Result]) -> Iterator[Result]:
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


def image_file(folder: Path, name: object, source: str) -> ImageFile:
    """
    Args:
        name: of the image, relative to the folder, from a file of annotations.
        source: names the file and the place in it, for messages.

    Raises:
        ValueError: the name leads out of the folder or is none; there is no such file, or it is no
            image that can be read.
    """
    for fault in file_name_faults(name):
        raise ValueError(f"{source}: {fault}")
    file = folder / name
    if not file.is_file():
        raise ValueError(f"{source}: {printable(file)} not found. Is {folder} the right folder?")
    try:
        size = header_size(file)
    except ValueError as error:
        raise ValueError(f"{printable(file)}: the image {error}.") from error
    return ImageFile(file, name, size.height, size.width)


def image_with_stem(folder: Path, stems: Sequence[str], source: str) -> ImageFile:
    """The image that has one of the names, but for its suffix; the first that is there.

    Args:
        source: names the file of annotations, for messages.

    Raises:
        ValueError: as :func:`image_file`.
    """
    for fault in file_name_faults(stems[0]):
        raise ValueError(f"{source}: {fault}")
    ends = [end for suffix in IMAGE_SUFFIXES for end in (suffix, suffix.upper())]
    for name in (f"{stem}{end}" for stem in stems for end in ends):
        if (folder / name).is_file():
            return image_file(folder, name, source)
    raise ValueError(
        f"{source}: {printable(folder / stems[0])} with an end such as .jpg or .png not found. Is "
        f"{folder} the right folder?"
    )


def check_size(image: ImageFile, height: object, width: object, source: str) -> None:
    """
    Raises:
        ValueError: the annotations give the image another size than it has, or none.
    """
    if height is None or width is None:
        raise ValueError(f"{source}: does not say the image's width and height.")
    if (height, width) != (image.height, image.width):
        raise ValueError(
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
        raise FileNotFoundError(f"{folder}: folder not found.")
    ends = tuple(suffix.lower() for suffix in suffixes)
    found = [
        Path(root, name)
        for root, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(ends) and not name.startswith(".")
    ]
    if not found:
        raise ValueError(f"{folder}: no file that ends in {', '.join(suffixes)}.")
    return sorted(found)


def read_object(path: Path, limit: int = MAX_FILE_BYTES) -> dict:
    """The JSON object of a file.

    Raises:
        FileNotFoundError, ValueError: there is none.
    """
    content = read_json(path, limit)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: is no JSON object.")
    return content


def require_images(images: Path | None, what: str) -> Path:
    """
    Raises:
        ValueError: the folder of images was not given.
        FileNotFoundError: there is no such folder.
    """
    if images is None:
        raise ValueError(f"{what} does not say where the images lie: give their folder after it.")
    if not images.is_dir():
        raise FileNotFoundError(f"{images}: folder of images not found.")
    return images
