"""Image files that a command line names, and where their results go."""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.pictures import image_suffixes

logger = logging.getLogger(__name__)

SHOWN = 10  # kinds of files in a message
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


def find_images(entries: Sequence[str], output: str | None = None) -> dict[Path, Path]:
    """
    Args:
        entries: image files, folders (with those below) or glob patterns.
        output: folder of results; where it lies in a folder of images, it is left out.

    Returns:
        file -> its name in a folder of results, that is its path below the folder that was given,
        or else its own name; in the order of the entries, sorted within one, each file once.

    Raises:
        FileNotFoundError: an entry gives no file.
    """
    found: dict[Path, Path] = {}
    for entry in entries:
        path = Path(entry).expanduser()
        if path.is_file():  # before globbing: a file may be called "a[1].jpg"
            matches = [path]
        elif path.is_dir():
            matches, left_out = images_below(path, output)
            if left_out:
                logger.warning("%s: %s", printable(path), summary(left_out))
        else:
            matched = sorted(map(Path, glob(str(path), recursive=True)))
            reasons = {match: _why_no_file(match) for match in matched if not match.is_dir()}
            for match in filter(reasons.get, reasons):
                logger.warning("%s is %s, and left out", printable(match), reasons[match])
            matches = [match for match, why in reasons.items() if why is None]
            if not matches:
                raise MissingFileError(
                    f"--input {entry}: no such file, folder or match; "
                    "give images, a folder, or a quoted pattern such as 'images/*.jpg'"
                )
        for match in matches:
            name = match.relative_to(path) if path.is_dir() else Path(match.name)
            found.setdefault(match, name)
    return found


def images_below(folder: Path, output: str | None = None) -> tuple[list[Path], dict[Path, str]]:
    """
    Args:
        output: folder of results; where it lies in the folder, it is not looked at. Nor are hidden
            files and folders. Links to folders are followed.

    Returns:
        the images, sorted; and every other file, with what it is instead.

    Raises:
        FileNotFoundError: there is no image.
        ValueError: the folder is that of the results.
    """
    results = os.path.realpath(Path(output).expanduser()) if output else None
    if os.path.realpath(folder) == results:
        raise UserError(
            f"--output {output}: is the folder of the images, whose files it would hold, too. Give "
            f"another one, such as {printable(folder / 'results')}."
        )
    images, others = [], {}
    for path in _files_below(folder, results):
        if why := _why_no_file(path) or _why_no_image(path):
            others[path] = why
        else:
            images.append(path)
    if not images:
        found = summary(others) if others else "It is empty."
        raise MissingFileError(f"--input {folder}: the folder holds no image. {found}")
    return sorted(images), dict(sorted(others.items()))


def summary(left_out: Mapping[Path, str]) -> str:
    """Return how many files are left out, and why."""
    counts = sorted(Counter(left_out.values()).items(), key=lambda count: (-count[1], count[0]))
    reasons = [f"{times} x {why}" for why, times in counts[:SHOWN]]
    more = ["..."] if len(counts) > SHOWN else []
    return f"{len(left_out)} files are left out: {printable(', '.join(reasons + more))}."


def _files_below(folder: Path, results: str | None) -> Iterator[Path]:
    seen = {results}  # real paths: a link may lead back
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        folders.sort(key=lambda name: os.path.islink(os.path.join(root, name)))  # own names first
        yield from (Path(root, name) for name in names if name[0] != ".")


def _why_no_file(path: Path) -> str | None:
    if path.is_file():
        return None
    return "no file but a pipe or device" if path.exists() else "a link to nothing"


def _why_no_image(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if suffix in image_suffixes():
        return None
    return f"no image, by its name ({suffix or 'no suffix'})"


def output_paths(images: Mapping[Path, Path], output: str) -> list[Path]:
    """
    Return where the picture of every image goes: into the folder ``output`` under the image's name,
    or, for one image, to the file ``output`` (a path with an image's suffix). Creates the folders.

    Args:
        images: of :func:`find_images`.

    Raises:
        ValueError: one file for several images, two images of one name, or an output that would
            overwrite one of the images.
    """
    target = Path(output).expanduser()
    if target.suffix.lower() in PICTURE_SUFFIXES and not target.is_dir():
        if len(images) > 1:
            raise UserError(
                f"--output {output} is one file for {len(images)} inputs; give a folder"
            )
        outputs = [target]
    else:
        outputs = [target / _drawn_name(name) for name in images.values()]
        repeated = [path for path, n in Counter(outputs).items() if n > 1]
        if repeated:
            same = [str(p) for p, path in zip(images, outputs) if path == repeated[0]]
            raise UserError(
                f"--output {output}: the pictures of {' and '.join(same[:2])} would both be "
                f"{repeated[0]}; draw them one by one, or give the folder that holds both"
            )
    sources = {os.path.realpath(source): source for source in images}
    for result in outputs:
        if source := sources.get(os.path.realpath(result)):
            raise UserError(f"--output {output} would overwrite the input {source}")
    for folder in {path.parent for path in outputs}:
        folder.mkdir(parents=True, exist_ok=True)
    return outputs


def _drawn_name(name: Path) -> Path:
    """A picture has its image's format where that is one of pictures."""
    return name if name.suffix.lower() in PICTURE_SUFFIXES else name.with_name(f"{name.name}.png")
