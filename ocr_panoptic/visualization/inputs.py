"""Which image files a command line names, and where their results go."""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path

from ocr_panoptic.files import printable

logger = logging.getLogger(__name__)

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
IMAGE_SUFFIXES = (*PICTURE_SUFFIXES, ".npy")


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
    results = os.path.realpath(Path(output).expanduser()) if output else None
    found: dict[Path, Path] = {}
    for entry in entries:
        path = Path(entry).expanduser()
        if path.is_file():  # before globbing: a file may be called "a[1].jpg"
            matches = [path]
        elif path.is_dir():
            matches = sorted(_images_below(path, results))
            if not matches:
                raise FileNotFoundError(
                    f"--input {entry}: the folder holds no image ({', '.join(IMAGE_SUFFIXES)})"
                )
        else:
            matches = sorted(filter(_is_file, map(Path, glob(str(path), recursive=True))))
            if not matches:
                raise FileNotFoundError(
                    f"--input {entry}: no such file, folder or match; "
                    "give images, a folder, or a quoted pattern such as 'images/*.jpg'"
                )
        for match in matches:
            name = match.relative_to(path) if path.is_dir() else Path(match.name)
            found.setdefault(match, name)
    return found


def _images_below(folder: Path, results: str | None) -> Iterator[Path]:
    """Links to folders are followed, hidden files and folders are not looked at."""
    seen = {results}  # real paths: a link may lead back
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        folders.sort(key=lambda name: os.path.islink(os.path.join(root, name)))  # own names first
        for name in names:
            path = Path(root, name)
            if path.suffix.lower() in IMAGE_SUFFIXES and name[0] != "." and _is_file(path):
                yield path


def _is_file(path: Path) -> bool:
    if not path.exists():
        logger.warning("%s is a link to nothing, and left out", printable(path))
    elif not path.is_file() and not path.is_dir():
        logger.warning("%s is no file but a pipe or device, and left out", printable(path))
    return path.is_file()


def output_paths(images: Mapping[Path, Path], output: str) -> list[Path]:
    """
    Where the picture of every image goes: into the folder ``output`` under the image's name, or,
    for one image, to the file ``output`` (a path with an image's suffix). Creates the folders.

    Args:
        images: of :func:`find_images`.

    Raises:
        ValueError: one file for several images, two images of one name, or an output that would
            overwrite one of the images.
    """
    target = Path(output).expanduser()
    if target.suffix.lower() in PICTURE_SUFFIXES and not target.is_dir():
        if len(images) > 1:
            raise ValueError(
                f"--output {output} is one file for {len(images)} inputs; give a folder"
            )
        outputs = [target]
    else:
        outputs = [target / _drawn_name(name) for name in images.values()]
        repeated = [path for path, n in Counter(outputs).items() if n > 1]
        if repeated:
            same = [str(p) for p, path in zip(images, outputs) if path == repeated[0]]
            raise ValueError(
                f"--output {output}: the pictures of {' and '.join(same[:2])} would both be "
                f"{repeated[0]}; draw them one by one, or give the folder that holds both"
            )
    sources = {os.path.realpath(source): source for source in images}
    for result in outputs:
        if source := sources.get(os.path.realpath(result)):
            raise ValueError(f"--output {output} would overwrite the input {source}")
    for folder in {path.parent for path in outputs}:
        folder.mkdir(parents=True, exist_ok=True)
    return outputs


def _drawn_name(name: Path) -> Path:
    """A picture has its image's format where that is one of pictures."""
    return name if name.suffix.lower() in PICTURE_SUFFIXES else name.with_name(f"{name.name}.png")
