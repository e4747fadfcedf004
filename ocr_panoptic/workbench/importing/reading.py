"""Parts that readers of annotations share: images that are found before their segments are read,
the faults of single images, and files by the names that annotations give."""

import functools
import logging
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ocr_panoptic.data.classes import has_controls
from ocr_panoptic.data.faults import DataFaults, first_few, raise_if_any
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.data.semantic.records import IMAGE_SUFFIXES
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable, read_json
from ocr_panoptic.formats.pictures import header_size

from .annotated_image import AnnotatedImage

logger = logging.getLogger(__name__)

# Label Studio puts it before the name of a file that was uploaded.
UPLOAD_PREFIX = re.compile("^[0-9a-f]{8}-")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class MissingImage(UserError):
    """Annotations name an image that is not there."""


@dataclass(frozen=True)
class Annotations:
    """The annotations of images. All images are found before the segments of any are read, which
    takes longer.

    Attributes:
        entries: for each image its place (a file, or a part of it), with which messages begin, and
            its entry.
        find: entry -> image without segments.
        read: (that image, entry) -> image with segments.
        labels: entry -> the class of each segment, without a look at its pixels; None if that takes
            as long as ``read``.
        instance: :attr:`.Segment.instance` of all segments, if there are ``labels``.
    """

    entries: Sequence[tuple[str, Any]]
    find: Callable[[Any], AnnotatedImage]
    read: Callable[[AnnotatedImage, Any], AnnotatedImage]
    labels: Callable[[Any], Iterable[str]] | None = None
    instance: bool | None = None

    def found(self, *, skip_missing: bool = False) -> list[tuple[str, tuple[AnnotatedImage, Any]]]:
        """Return place, and image and entry, of all images.

        Args:
            skip_missing: leave out images that are not there, in place of raising DataFaults.
        """
        found, missing, faults = [], [], []
        _files_by_name.cache_clear()
        for place, entry in self.entries:
            try:
                found.append((place, (self.find(entry), entry)))
            except Exception as error:
                (missing if isinstance(error, MissingImage) else faults).extend(
                    faults_of(place, error)
                )
        if missing and not (skip_missing and found):
            faults += missing
            if found:
                number = f"{len(missing)} of {len(self.entries)} images"
                faults.append(f"{number} are not there; --missing skip leaves them out.")
        raise_if_any(faults)
        if moved := [image for _, (image, _) in found if image.written is not None]:
            shown = [f"{image.name} for {image.written}" for image in moved[:3]]
            logger.warning(
                f"{len(moved)} of {len(found)} images have other paths than the annotations give: "
                f"{first_few(shown)}. Are these the right ones?"
            )
        return found

    def segments_of(self, found: tuple[str, tuple[AnnotatedImage, Any]]) -> AnnotatedImage:
        """Return a found image with its segments; it raises DataFaults for whatever is wrong."""
        (image,) = each([found], lambda found: self.read(*found))
        return image

    def __iter__(self) -> Iterator[AnnotatedImage]:
        """Yield the images with their segments."""
        yield from each(self.found(), lambda found: self.read(*found))


def each(items: Iterable[tuple[str, _Item]], read: Callable[[_Item], _Result]) -> Iterator[_Result]:
    """Yield ``read(item)`` of the items, and raise the errors of all as DataFaults at the end.

    Args:
        items: pairs of a place (a file, or a part of it), with which messages begin, and an item.
    """
    faults: list[str] = []
    for place, item in items:
        try:
            result = read(item)
        except Exception as error:  # zlib, Pillow and pycocotools raise what broken values lead to
            faults += faults_of(place, error)
        else:
            yield result
    raise_if_any(faults)


def faults_of(place: str, error: Exception) -> list[str]:
    """Return what was wrong at a place, for messages."""
    if isinstance(error, DataFaults):
        return [f"{place}: {fault}" for fault in error.faults]
    if isinstance(error, UserError | OSError):
        return [str(error) if str(error).startswith(place) else f"{place}: {error}"]
    return [f"{place}: cannot be read ({type(error).__name__}: {error})."]


def image_file(folder: Path, names: Sequence[str]) -> AnnotatedImage:
    """Return the image that has the first of the names that is there, without segments.

    Annotations may have been written where the image lay in another folder, or in Windows. If no
    name is there, the image is meant that alone ends in one of them, in whatever case.

    Args:
        names: paths relative to the folder, the first as the annotations give it.
    """
    if not isinstance(names[0], str) or has_controls(names[0]):
        raise UserError(next(file_name_faults(names[0])))
    inside = (name for name in names if not any(file_name_faults(name)))
    name = next((name for name in inside if (folder / name).is_file()), None)
    written = None
    if name is None:
        name = _moved(folder, names)
        is_same = _folded(name) == _folded(names[0].replace("\\", "/"))
        written = None if is_same else names[0]
    try:
        size = header_size(folder / name)
    except ValueError as error:
        raise UserError(f"{printable(folder / name)}: the image {error}") from error
    return AnnotatedImage(folder / name, name, size.height, size.width, written=written)


def _moved(folder: Path, names: Sequence[str]) -> str:
    """Return the file below the folder that ends in one of the names, or raise MissingImage."""
    ends = [tail for name in names for tail in tails(name)]
    for tail in ends:
        if (folder / tail).is_file():
            return tail
    several = ""
    for tail in ends:
        end = _folded(f"/{tail}")
        listed = _files_by_name(folder).get(end.rpartition("/")[2], ())
        found = [file for file in listed if _folded(f"/{file}").endswith(end)]
        if len(found) == 1:
            return found[0]
        several = f" {len(found)} files end so: {first_few(found)}." if found else several
    for fault in file_name_faults(names[0]):
        raise UserError(fault)
    others = f", nor any of {len(names) - 1} other names" if len(names) > 1 else ""
    raise MissingImage(
        f"{printable(folder / names[0])} not found{others}.{several} Is {folder} the right folder?"
    )


def tails(name: str) -> Iterator[str]:
    """Yield a path as one inside a folder, and without its first parts, the longest first."""
    parts = [p for p in name.replace("\\", "/").split("/") if p not in ("", ".", "..")]
    return ("/".join(parts[first:]) for first in range(len(parts)))


def _folded(name: str) -> str:
    """Return a name as file systems compare it that ignore case, and ways to write an umlaut."""
    return unicodedata.normalize("NFC", name).casefold()


@functools.cache
def _files_by_name(folder: Path) -> dict[str, list[str]]:
    """Return the paths of all files below a folder, by the name alone."""
    found = defaultdict(list)
    for root, _, names in os.walk(folder):
        for name in sorted(names):
            found[_folded(name)].append(Path(root, name).relative_to(folder).as_posix())
    return found


def names_of_upload(name: str) -> list[str]:
    """Return the name, and the file's name before Label Studio had it."""
    folder, last = os.path.split(name)
    return list(dict.fromkeys([name, os.path.join(folder, UPLOAD_PREFIX.sub("", last))]))


def image_with_stem(folder: Path, stems: Sequence[str]) -> AnnotatedImage:
    """Return the first image that has one of the names, whatever its suffix."""
    ends = [end for suffix in IMAGE_SUFFIXES for end in (suffix, suffix.upper())]
    return image_file(folder, [f"{stem}{end}" for stem in stems for end in ends])


def check_size(image: AnnotatedImage, height: object, width: object) -> None:
    """Raise UserError if the annotations give the image another size than it has. Some do not give
    it, or give 0."""
    if (
        not height
        or not width
        or (f"{height}", f"{width}") == (f"{image.height}", f"{image.width}")
    ):
        return
    if (height, width) != (image.height, image.width):  # 640.0 is 640
        raise UserError(
            f"is of {printable(width)}x{printable(height)} pixels, the image "
            f"{printable(image.file)} of {image.width}x{image.height} (width x height)"
            f"{header_size(image.file).note}"
        )


def files_below(folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> list[Path]:
    """Return the files that end in one of the suffixes, without hidden ones, sorted by name."""
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


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, without white space around them."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [line.strip() for line in text.split("\n")]


def read_object(path: Path) -> dict:
    """Return the JSON object of a file."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not a JSON object.")
    return content


def require_images(images: Path | None, what: str) -> Path:
    """Return the folder of images that a user gave, if it is there."""
    if images is None:
        raise UserError(f"{what} does not say where the images lie: give their folder after it.")
    if not images.is_dir():
        raise MissingFileError(f"{images}: folder of images not found.")
    return images
