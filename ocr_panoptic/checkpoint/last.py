"""Finds the checkpoint of a folder that a training resumes from."""

import logging
import os
import re
import zipfile
from pathlib import Path

NO_CHECKPOINT = "none of the run that has begun here"  # in last_checkpoint, until there is one
RESUMABLE = re.compile(r"model_(\d{7,}|final)\.pth")


def last_checkpoint(folder: str | os.PathLike) -> str:
    """
    Return the checkpoint named in the folder's ``last_checkpoint``, or the newest whole one.

    The latter comes with a warning. "" means that there is no checkpoint, or that a new training
    has begun and has not written any.
    """
    folder = Path(folder)
    tag = folder / "last_checkpoint"
    named = tag.read_text() if tag.is_file() else ""
    if named == NO_CHECKPOINT:
        return ""
    if RESUMABLE.fullmatch(named) and _is_whole(folder / named):
        return str(folder / named)
    newest = newest_whole(folder)
    if named or newest:
        logging.getLogger(__name__).warning(
            "%s names %r, which is not a whole checkpoint; the newest whole one is %s",
            *(tag, named, newest or "none"),
        )
    return newest


def newest_whole(folder: str | os.PathLike) -> str:
    """Return the newest whole checkpoint of a folder, from any run; "" without any."""
    files = (path for path in Path(folder).glob("*.pth") if RESUMABLE.fullmatch(path.name))
    newest_first = sorted(files, key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
    return next((str(path) for path in newest_first if _is_whole(path)), "")


def _is_whole(path: Path) -> bool:
    """Return whether a file of ``torch.save`` has its end, which holds its table of contents."""
    return path.is_file() and zipfile.is_zipfile(path)
