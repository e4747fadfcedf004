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
    Returns:
        the checkpoint that the folder's ``last_checkpoint`` names or, where that is damaged or
        absent, the newest whole one, with a warning; "" where there is none, or where a training
        has begun that has none yet
    """
    folder = Path(folder)
    named = _named(folder / "last_checkpoint")
    if named == NO_CHECKPOINT:
        return ""
    if named and RESUMABLE.fullmatch(named) and _is_whole(folder / named):
        return str(folder / named)
    newest = newest_whole(folder)
    if named is not None or newest:
        logging.getLogger(__name__).warning(
            "%s %s; %s",
            folder / "last_checkpoint",
            "is not there" if named is None else f"names {named!a}, which is no whole checkpoint",
            f"the newest whole one is {newest}" if newest else "there is no other one",
        )
    return newest


def newest_whole(folder: str | os.PathLike) -> str:
    """The newest whole checkpoint of a folder, whoever made it; "" where there is none."""
    files = (path for path in Path(folder).glob("*.pth") if RESUMABLE.fullmatch(path.name))
    newest_first = sorted(files, key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
    return next((str(path) for path in newest_first if _is_whole(path)), "")


def _named(file: Path) -> str | None:
    """Return what ``last_checkpoint`` says, of which no more is read than a name needs."""
    if not file.is_file():
        return None
    with open(file, encoding="utf-8", errors="replace") as f:
        return f.read(255).strip()


def _is_whole(path: Path) -> bool:
    """Return whether a file of ``torch.save`` has its end, where the table of its contents is."""
    return path.is_file() and zipfile.is_zipfile(path)
