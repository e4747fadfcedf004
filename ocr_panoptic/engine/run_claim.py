"""One training at a time in an OUTPUT_DIR."""

import atexit
import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from detectron2.utils import comm

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable

FILE = "training.lock"
BEAT = 15  # seconds between two signs of life
WATCH = 90  # seconds without any that another machine's training is dead after
MAX_LENGTH = 10_000

_claims: dict[Path, TextIOWrapper] = {}


def claim(folder: str | os.PathLike) -> None:
    """
    Keep other trainings out of a folder until :func:`release` or the end of this process, however
    it ends. To claim a folder again is fine. Of several processes the main one does it for all.

    The claim of a process of this machine ends with it. Of one of another machine, which may have
    lost its power, it ends when the file has not been touched for a while; this waits for that.

    Raises:
        ValueError: another training has it.
    """
    if comm.is_main_process():
        _claim(Path(folder).resolve())


def release(folder: str | os.PathLike) -> None:
    """Let other trainings in."""
    file = _claims.pop(Path(folder).resolve(), None)
    if file:
        file.truncate(0)
        file.close()


def _claim(folder: Path) -> None:
    if folder in _claims:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    # Open as long as it is claimed.
    file = open(path, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115
    file.seek(0)
    holder = _parsed(file.read(MAX_LENGTH))
    here = socket.gethostname()
    try:
        # A record lock: loaders that outlive a killed training have no part in it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_taken = holder.get("host", here) != here and _is_touched(path)
    except (BlockingIOError, PermissionError):
        is_taken = True
    except OSError:  # a file system without locks
        is_taken = holder.get("pid") != str(os.getpid()) and bool(holder) and _is_touched(path)
    if is_taken:
        file.close()
        raise UserError(
            f"OUTPUT_DIR {folder} is that of another training: process "
            f"{holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown machine')}, begun "
            f"{holder.get('begun', 'at an unknown time')}. Wait for its end or stop it, or set "
            f"another OUTPUT_DIR. If it is surely none, remove {path}."
        )
    file.truncate(0)
    begun = time.strftime("%Y-%m-%d %H:%M:%S")
    file.write(json.dumps({"host": here, "pid": os.getpid(), "begun": begun}) + "\n")
    file.flush()
    _claims[folder] = file
    threading.Thread(target=_keep_touching, args=(folder, file), daemon=True).start()


def _keep_touching(folder: Path, file: TextIOWrapper) -> None:
    while _claims.get(folder) is file:
        with contextlib.suppress(OSError):
            os.utime(folder / FILE)
        time.sleep(BEAT)


def _is_touched(path: Path) -> bool:
    """Return whether somebody does so while this watches: no clocks of two machines are
    compared."""
    logging.getLogger(__name__).warning(
        "%s is of another machine: watching it for %d s, whether its training lives", path, WATCH
    )
    before = path.stat().st_mtime_ns
    time.sleep(WATCH)
    return path.stat().st_mtime_ns != before


def _parsed(text: str) -> dict[str, str]:
    """Return the claim, or nothing where it was released or something else has written there."""
    try:
        holder = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(holder, dict):
        return {}
    return {key: printable(value)[:100] for key, value in holder.items()}


@contextlib.contextmanager
def released_after() -> Iterator[None]:
    """Let other trainings into the folders that are claimed within; those of before stay."""
    before = set(_claims)
    try:
        yield
    finally:
        for folder in set(_claims) - before:
            release(folder)


@atexit.register
def release_all() -> None:
    """Let other trainings into all folders of this process."""
    for folder in list(_claims):
        release(folder)
