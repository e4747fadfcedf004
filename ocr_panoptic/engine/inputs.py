"""Inputs that a command line names to be predicted: images of a folder or a list, frames of a
video."""

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.image_sources import images_below
from ocr_panoptic.formats.pictures import (
    COLOURS,
    VIDEO_SUFFIXES,
    image_suffixes,
    num_frames,
    read_picture,
)
from ocr_panoptic.formats.video import VideoReader

from .rows import is_large

logger = logging.getLogger(__name__)

LIST_SUFFIX = ".txt"
THREADS = 2

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Item:
    """
    Attributes:
        name: of its results, without suffix: a path relative to a folder of results, no two alike.
        file_name: path of the image relative to the folder of all.
        source: the file.
        stamp: size and time of the file: another one means another image.
    """

    name: str
    file_name: str
    source: Path
    stamp: tuple[int, ...]


class Absence(Enum):
    LARGE = "to be read row by row"
    ABSENT = "the video has fewer frames than it states"


LARGE, ABSENT = Absence


Read = np.ndarray | Absence | Exception
"""An image [H,W,C], see :func:`.read_picture`; or why it is not there, an exception where it cannot
be read."""


def find_inputs(entry: str, output: Path | None, max_pixels: int) -> "Inputs":
    """
    Args:
        entry: a folder, whose images and those of all folders below are taken; a text file with a
            path on each line, relative to its own folder; an image; or a video.
        output: folder of results, if any, left out where it lies in a folder of images.
        max_pixels: larger images are left to be read row by row.

    Raises:
        FileNotFoundError: there is no such entry, or it holds no image.
        ValueError: it is something else, a video that cannot be opened, or the output.
    """
    # Absolute, as the paths of a truth are.
    path = Path(os.path.abspath(Path(entry).expanduser()))
    if path.is_dir():
        files, others = images_below(path, output and str(output))
        return ImageFiles(path, path, files, max_pixels, others)
    if not path.is_file():
        raise MissingFileError(f"--input {entry}: no such folder, list, image or video")
    suffix = path.suffix.lower()
    if suffix in image_suffixes():
        return ImageFiles(path, path.parent, [path], max_pixels)
    if suffix in VIDEO_SUFFIXES:
        return VideoFrames(path)
    if suffix != LIST_SUFFIX:
        raise UserError(
            f"--input {entry}: ends in {suffix or 'nothing'}; expected a folder, a list of images "
            f"({LIST_SUFFIX}), an image ({', '.join(sorted(image_suffixes()))}) or a video "
            f"({', '.join(VIDEO_SUFFIXES)})"
        )
    files = _listed(path)
    folder = Path(os.path.commonpath([file.parent for file in files]))
    return ImageFiles(path, folder, files, max_pixels)


class ImageFiles:
    """
    Images of a folder.

    Attributes:
        entry: what was named, an absolute path.
        folder: that the file names are relative to; None for a video.
        items: all of them, in order.
        left_out: the other files that are there -> what they are.
    """

    def __init__(
        self,
        entry: Path,
        folder: Path,
        files: Sequence[Path],
        max_pixels: int,
        left_out: Mapping[Path, str] | None = None,
    ):
        self.entry, self.folder, self.left_out = entry, folder, left_out or {}
        self._max_pixels = max_pixels
        self._told_of_frames = threading.Lock()  # taken by the first thread that tells, for good
        names = [file.relative_to(folder).as_posix() for file in files]
        unique = _unique_names(names)
        self.items = [
            Item(own, name, file, _stamp(file))
            for own, name, file in zip(unique, names, files, strict=True)
        ]

    def read(
        self, items: Sequence[Item], image_format: str, channels: int = COLOURS
    ) -> Iterator[tuple[Item, Read]]:
        """
        Yield some of the items with their images, which are read ahead of what is done with them.

        Args:
            image_format: channel order, "BGR" or "RGB".
            channels: C; frames of a video have 3.
        """

        def load(item: Item) -> tuple[Item, Read]:
            self._tell_of_frames(item.source)
            try:
                if is_large(item.source, self._max_pixels, channels):
                    return item, LARGE
                return item, read_picture(item.source, image_format, channels)
            except (OSError, ValueError) as error:
                return item, error

        return ahead(load, items)

    def _tell_of_frames(self, path: Path) -> None:
        if self._told_of_frames.locked() or (count := num_frames(path)) <= 1:
            return
        if self._told_of_frames.acquire(blocking=False):
            logger.warning(
                "%s has %d frames; of it, and of others like it, the first is predicted. Give a "
                "video for all of them.",
                printable(path),
                count,
            )


class VideoFrames:
    """Frames of a video, by their numbers from 0; with what :class:`ImageFiles` has."""

    folder, left_out = None, {}

    def __init__(self, path: Path):
        self.entry = path
        count = VideoReader(path).num_frames or sum(1 for _ in VideoReader(path))
        if not count:
            raise UserError(f"--input {path}: no frame can be read; convert it with ffmpeg")
        names = [f"{number:06d}" for number in range(count)]
        stamp = _stamp(path)
        self.items = [Item(name, f"{name}.png", path, stamp) for name in names]

    def read(
        self, items: Sequence[Item], image_format: str, channels: int = COLOURS
    ) -> Iterator[tuple[Item, Read]]:
        """Yield as :meth:`ImageFiles.read` does."""
        frames, position = iter(VideoReader(self.entry)), -1
        end: Absence | Exception = ABSENT

        def load(item: Item) -> tuple[Item, Read]:
            nonlocal position, end
            frame = None
            try:
                while position < int(item.name):
                    frame, position = next(frames, None), position + 1
            except ValueError as error:  # it has lost frames, and the iterator is at its end
                end = error
            if frame is None:
                return item, end
            return item, frame if image_format == "BGR" else frame[:, :, ::-1]

        return ahead(load, items, threads=1)


Inputs = ImageFiles | VideoFrames


def _unique_names(names: Sequence[str]) -> list[str]:
    """Return names without suffixes, but for those that were alike, by which one result replaced
    the other: "a.jpg" and "a.png" keep theirs, and then "a.jpg.bmp" its own."""
    found = [name.removesuffix(Path(name).suffix) for name in names]
    while True:
        counts = Counter(map(str.lower, found))
        now = [n if counts[f.lower()] > 1 else f for n, f in zip(names, found, strict=True)]
        if now == found:  # what is alike now differs in capitals alone, as the files do
            return found
        found = now


def _listed(path: Path) -> list[Path]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"--input {path}: is no text file with a path on each line") from error
    files = [Path(os.path.abspath(path.parent / Path(line).expanduser())) for line in lines if line]
    if not files:
        raise MissingFileError(f"--input {path}: the list names no image")
    return list(dict.fromkeys(files))


def _stamp(path: Path) -> tuple[int, ...]:
    """() for a file that is not there, which shows when it is read."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_size, state.st_mtime_ns


def under_way(threads: int = THREADS) -> int:
    """The largest number of items whose results :func:`ahead` has not given yet."""
    return 2 * threads


def ahead(
    function: Callable[[Any], _Result], items: Iterable[Any], threads: int = THREADS
) -> Iterator[_Result]:
    """
    ``map(function, items)`` in threads, which do while others hold the GIL what does without it:
    decoding and encoding of images, and the network. Memory does not grow, see :func:`under_way`.
    """
    pool = ThreadPoolExecutor(threads)
    pending: deque = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= under_way(threads):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
