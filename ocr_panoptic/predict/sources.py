"""Find and read a command's input images: a folder, a list of files, an image or a video."""

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable, raise_error
from ocr_panoptic.formats.pictures import COLOURS, VIDEO_SUFFIXES, image_suffixes, read_picture
from ocr_panoptic.formats.video import VideoReader

logger = logging.getLogger(__name__)

LIST_SUFFIX = ".txt"
THREADS = 2

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Item:
    """An input image: a file, or a frame of a video."""

    name: str  # unique relative path for the image's results, usually without suffix
    file_name: str  # path of the image relative to the folder that contains all images
    source: Path  # image file, or video that contains the frame
    frame: int | None = None  # number of the frame in a video, from 0


@dataclass(frozen=True)
class Inputs:
    """The images that a command reads from its input, and the files that are left out."""

    entry: Path  # absolute path that the user named
    items: list[Item]
    left_out: Mapping[Path, str] = field(default_factory=dict)  # skipped file -> what it is


def find_inputs(entry: str | os.PathLike, output: str | os.PathLike | None = None) -> Inputs:
    """
    Find the images in a folder, a list of files, an image file or a video.

    Args:
        entry: a folder, which is searched with its subfolders; a text file with a path on each
            line, relative to the text file's folder; an image; or a video.
        output: folder of results, which is not searched for images.
    """
    if not os.fspath(entry):  # Path("") would be the current folder
        raise UserError("The input is empty; expected a folder, a file list, an image or a video.")
    path = Path(os.path.abspath(Path(entry).expanduser()))
    if path.is_dir():
        files, others = images_below(path, output)
        return Inputs(path, _items(path, files), others)
    if not path.is_file():
        raise MissingFileError(f"{entry}: no such file or folder")
    suffix = path.suffix.lower()
    if suffix in image_suffixes():
        return Inputs(path, _items(path.parent, [path]))
    if suffix in VIDEO_SUFFIXES:
        return Inputs(path, _frames(path))
    if suffix != LIST_SUFFIX:
        raise UserError(
            f"{entry} has the suffix {suffix!r}; expected a folder, a list of images "
            f"({LIST_SUFFIX}), an image ({', '.join(sorted(image_suffixes()))}) or a video "
            f"({', '.join(VIDEO_SUFFIXES)})"
        )
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file with a path on each line") from error
    files = [Path(os.path.abspath(path.parent / Path(line).expanduser())) for line in lines if line]
    if not files:
        raise MissingFileError(
            f"{path}: the list is empty. Write the path of an image on each line"
        )
    folder = Path(os.path.commonpath([file.parent for file in files]))
    return Inputs(path, _items(folder, list(dict.fromkeys(files))))


def _items(folder: Path, files: Sequence[Path]) -> list[Item]:
    """Return an item for each file; item names have no suffix unless two would be equal."""
    names = [file.relative_to(folder).as_posix() for file in files]
    found, before = [name.removesuffix(Path(name).suffix) for name in names], None
    while found != before:  # repeat: the stem of "a.jpg.bmp" can equal a kept name "a.jpg"
        counts = Counter(map(str.lower, found))
        before = found
        found = [n if counts[f.lower()] > 1 else f for n, f in zip(names, found, strict=True)]
    return [Item(*known) for known in zip(found, names, files, strict=True)]


def _frames(path: Path) -> list[Item]:
    count = 0
    try:
        for _ in VideoReader(path):
            count += 1
    except UserError:  # truncated: the extra item makes a later reader report it, too
        count += 1
    if not count:
        raise UserError(f"{path}: the video has no readable frame. Convert it with ffmpeg")
    names = [f"{number:06d}" for number in range(count)]
    return [Item(name, f"{name}.png", path, number) for number, name in enumerate(names)]


def read_items(
    items: Iterable[Item], image_format: str, channels: int = COLOURS
) -> Iterator[tuple[Item, np.ndarray | Exception]]:
    """
    Yield each item with its image [H, W, C], or with the error raised while reading it.

    Args:
        channels: number of channels, C; frames of a video always have 3.
    """
    items = list(items)
    is_video = bool(items) and items[0].frame is not None
    frames = enumerate(VideoReader(items[0].source)) if is_video else iter(())

    def load(item: Item) -> tuple[Item, np.ndarray | Exception]:
        try:
            if not is_video:
                return item, read_picture(item.source, image_format, channels)
            frame = next(frame for number, frame in frames if number == item.frame)
            return item, frame if image_format == "BGR" else frame[:, :, ::-1]
        except (OSError, UserError) as error:
            return item, error

    return ahead(load, items, 1 if is_video else THREADS)


def ahead(
    function: Callable[[Any], _Result], items: Iterable[Any], threads: int = THREADS
) -> Iterator[_Result]:
    """Yield ``function(item)`` for each item, in order; threads compute the results in advance."""
    pool = ThreadPoolExecutor(threads)
    pending: deque = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= 2 * threads:  # limits the results in memory
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def images_below(
    folder: Path, output: str | os.PathLike | None = None
) -> tuple[list[Path], dict[Path, str]]:
    """
    Return the sorted images below a folder, and a dict from omitted files to reasons.

    Links to folders are followed. Hidden files, hidden folders and the output folder are ignored.
    """
    results = os.path.realpath(Path(output).expanduser()) if output else None
    if os.path.realpath(folder) == results:
        raise UserError(
            f"--output {output} is the folder of the images, so results would mix with them. "
            f"Name another folder, such as {printable(folder / 'results')}."
        )
    images, others = [], {}
    for path in _files_below(folder, results):
        suffix = path.suffix.lower()
        if not path.is_file():
            others[path] = "not a file"
        elif suffix not in image_suffixes():
            others[path] = f"unsupported suffix ({suffix or 'none'})"
        else:
            images.append(path)
    if not images:
        reason = summary(others) if others else "It is empty."
        raise MissingFileError(f"{folder}: the folder contains no images. {reason}")
    return sorted(images), dict(sorted(others.items()))


def summary(left_out: Mapping[Path, str]) -> str:
    """Return a sentence that says how many files are left out, and why."""
    counts = sorted(Counter(left_out.values()).items(), key=lambda count: (-count[1], count[0]))
    reasons = [f"{times} x {why}" for why, times in counts]
    return f"{len(left_out)} file(s) left out: {printable(', '.join(reasons))}."


def _files_below(folder: Path, results: str | None) -> Iterator[Path]:
    seen = {results}  # real paths to skip, because links can form cycles
    for root, folders, names in os.walk(folder, followlinks=True, onerror=raise_error):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        folders.sort(key=lambda name: os.path.islink(os.path.join(root, name)))  # links last
        yield from (Path(root, name) for name in names if name[0] != ".")
