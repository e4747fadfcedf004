"""Functions that the readers of all annotation formats share."""

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

from ocr_panoptic.data.faults import DataFaults, first_few, raise_if_any
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.data.semantic.records import IMAGE_SUFFIXES
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable, raise_error, read_json
from ocr_panoptic.formats.pictures import header_size

from .annotated_image import AnnotatedImage, Segment

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class MissingImage(UserError):
    """The error for an image that annotations name but that does not exist."""


@dataclass(frozen=True)
class Annotations:
    """
    The annotated images of a source.

    Attributes:
        entries: pair (place, entry) for each image. ``place`` names the file, or part of a file,
            in error messages; ``entry`` has the image's annotations in the format's own type.
        find: function that returns an entry's image, without segments.
        read: function that takes an image and its entry, and returns the image with segments. It
            must be picklable.
        drafts: function that returns an entry's segments without masks; None if not available.
    """

    entries: Sequence[tuple[str, Any]]
    find: Callable[[Any], AnnotatedImage]
    read: Callable[[AnnotatedImage, Any], AnnotatedImage]
    drafts: Callable[[Any], list[Segment]] | None = None

    def found(self, *, skip_missing: bool = False) -> list[tuple[str, tuple[AnnotatedImage, Any]]]:
        """
        Return (place, (image, entry)) for each entry; the images do not have segments yet.

        Raise DataFaults if images are missing or faulty. If ``skip_missing`` is True, missing
        images are left out, unless all are missing.
        """
        found = []
        missing: list[str] = []
        faults: list[str] = []
        _files_by_name.cache_clear()
        for place, entry in self.entries:
            try:
                found.append((place, (self.find(entry), entry)))
            except MissingImage as error:
                missing += faults_of(place, error)
            except Exception as error:
                faults += faults_of(place, error)
        if missing and not (skip_missing and found):
            faults += missing
            if found:
                number = f"{len(missing)} of {len(self.entries)} images"
                faults.append(f"{number} not found. To leave them out, give --missing skip.")
        raise_if_any(faults)
        if moved := [image for _, (image, _) in found if image.written is not None]:
            shown = [f"{image.name} instead of {image.written}" for image in moved[:3]]
            logger.warning(
                f"{len(moved)} of {len(found)} images found at paths other than those in the "
                f"annotations: {first_few(shown)}. Check that they are the right images."
            )
        return found

    def __iter__(self) -> Iterator[AnnotatedImage]:
        return read_each(self.found(), lambda found: self.read(*found))


def read_each(
    items: Iterable[tuple[str, _Item]], read: Callable[[_Item], _Result]
) -> Iterator[_Result]:
    """Yield ``read(item)`` for each (place, item); finally, raise DataFaults if any call failed."""
    faults: list[str] = []
    for place, item in items:
        try:
            result = read(item)
        except Exception as error:  # zlib, Pillow and pycocotools raise errors of any type
            faults += faults_of(place, error)
        else:
            yield result
    raise_if_any(faults)


def faults_of(place: str, error: Exception) -> list[str]:
    if isinstance(error, DataFaults):
        return [f"{place}: {fault}" for fault in error.faults]
    if isinstance(error, UserError | OSError):
        return [str(error) if str(error).startswith(place) else f"{place}: {error}"]
    if isinstance(error, KeyError):
        return [f"{place}: the key {error} is missing."]
    return [f"{place}: cannot be read ({type(error).__name__}: {error})."]


def image_file(folder: Path, names: Sequence[str]) -> AnnotatedImage:
    """
    Return the image at the first existing path, as an AnnotatedImage without segments.

    If no path exists, search below ``folder`` for a file with the same name, ignoring case. If
    several files have it, the parent folders decide. Raise MissingImage if no single file is left.

    Args:
        names: paths relative to ``folder``; the first is the path in the annotations.
    """
    inside = (name for name in names if not any(file_name_faults(name)))
    name = next((name for name in inside if (folder / name).is_file()), None)
    written = None
    if name is None:
        name = _moved(folder, names)
        if _folded(name) != _folded(names[0].replace("\\", "/")):
            written = names[0]
    try:
        size = header_size(folder / name)
    except ValueError as error:
        raise UserError(f"{printable(folder / name)}: the image {error}") from error
    return AnnotatedImage(folder / name, name, size.height, size.width, written=written)


def _moved(folder: Path, names: Sequence[str]) -> str:
    """Search ``folder`` for an image that is not at its annotated path; return the path found."""
    several = ""
    ends = [tail for name in names for tail in tails(name)]
    for tail in ends:
        if (folder / tail).is_file():
            return tail
    for tail in ends:
        end = _folded(f"/{tail}")
        listed = _files_by_name(folder).get(end.rpartition("/")[2], ())
        matches = [file for file in listed if _folded(f"/{file}").endswith(end)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            several = f"Which of {len(matches)} files is meant: {first_few(matches)}?"
    for fault in file_name_faults(names[0]):
        raise UserError(fault)
    raise MissingImage(
        f"{printable(folder / names[0])} not found. {several or f'Is {folder} the right folder?'}"
    )


def tails(name: str) -> Iterator[str]:
    """Yield a path, then the path without its first folder, and so on: a/b.png, b.png."""
    parts = [p for p in name.replace("\\", "/").split("/") if p not in ("", ".", "..")]
    return ("/".join(parts[first:]) for first in range(len(parts)))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


@functools.cache
def _files_by_name(folder: Path) -> dict[str, list[str]]:
    """Return the relative paths of all files below a folder, keyed by case-folded file name."""
    files = defaultdict(list)
    for root, _, names in os.walk(folder, onerror=raise_error):
        for name in sorted(names):
            files[_folded(name)].append(Path(root, name).relative_to(folder).as_posix())
    return files


def names_of_upload(name: str) -> list[str]:
    """Return a file name, and the name without the prefix that Label Studio adds to uploads."""
    folder, last = os.path.split(name)
    original = os.path.join(folder, re.sub("^[0-9a-f]{8}-", "", last))
    return list(dict.fromkeys([name, original]))


def image_with_stem(folder: Path, stems: Sequence[str]) -> AnnotatedImage:
    """Return the first existing image whose path is one of ``stems`` plus an image suffix."""
    ends = [end for suffix in IMAGE_SUFFIXES for end in (suffix, suffix.upper())]
    return image_file(folder, [f"{stem}{end}" for stem in stems for end in ends])


def check_size(image: AnnotatedImage, height: Any, width: Any) -> None:
    """Raise UserError if the annotated size differs from the image's size; ignore None and 0."""
    rows, columns = float(height or 0), float(width or 0)
    if rows and columns and (rows, columns) != (image.height, image.width):
        raise UserError(
            f"the annotation is for {printable(width)}x{printable(height)} pixels, but the image "
            f"{printable(image.file)} has {image.width}x{image.height} (width x "
            f"height){header_size(image.file).note}"
        )


def files_below(folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> list[Path]:
    """Return the files below a folder that have one of ``suffixes``, sorted; skip hidden files."""
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: folder not found.")
    ends = tuple(suffix.lower() for suffix in suffixes)
    files = [
        Path(root, name)
        for root, _, names in os.walk(folder, onerror=raise_error)
        for name in names
        if not name.startswith(".") and name.lower().endswith(ends)
    ]
    if not files:
        raise UserError(f"{folder}: no files that end in {', '.join(suffixes)}.")
    return sorted(files)


def read_lines(path: Path) -> list[str]:
    """Return the stripped lines of a text file."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [line.strip() for line in text.split("\n")]


def read_object(path: Path) -> dict:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object.")
    return content


def require_images(images: Path | None, source: Path) -> Path:
    if images is None:
        raise UserError(f"{source}: no folder of images is given. Add it after this path.")
    if not images.is_dir():
        raise MissingFileError(f"{images}: folder of images not found.")
    return images
