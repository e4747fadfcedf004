"""The checkpoint of a folder that a training is resumed from."""

import logging
import os
import re
import zipfile
from pathlib import Path

NO_CHECKPOINT = "none of the run that has begun here"  # in last_checkpoint, until there is one
RESUMABLE = re.compile(r"model_(\d{7,}|final)\.pth")


def last_checkpoint(folder: str | os.PathLike) -> str:
    """
    Return the checkpoint that the folder's ``last_checkpoint`` names or, where that is not whole,
    the newest whole one, with a warning; "" where there is none, or where a training has begun that
    has none yet.
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
            "%s names %r, which is no whole checkpoint; the newest whole one is %s",
            *(tag, named, newest or "none"),
        )
    return newest


def newest_whole(folder: str | os.PathLike) -> str:
    """Return the newest whole checkpoint of a folder, whoever made it; "" where there is none."""
    files = (path for path in Path(folder).glob("*.pth") if RESUMABLE.fullmatch(path.name))
    newest_first = sorted(files, key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
    return next((str(path) for path in newest_first if _is_whole(path)), "")


def _is_whole(path: Path) -> bool:
    """Check that a file of ``torch.save`` has its end, where the table of its contents is."""
    return path.is_file() and zipfile.is_zipfile(path)
