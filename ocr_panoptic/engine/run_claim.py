"""One training at a time in an OUTPUT_DIR."""

import atexit
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from detectron2.utils import comm

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import locked, printable

FILE = "training.lock"
BEAT = 15  # seconds between two signs of life
WATCH = 90  # seconds without any that another machine's training is dead after
MAX_LENGTH = 10_000

_claims: dict[Path, ExitStack] = {}


def claim(folder: str | os.PathLike) -> None:
    """
    Keep other trainings out of a folder until :func:`release` or the end of this process, however
    it ends. To claim a folder again is fine. Of several processes the main one does it for all.

    The claim of a process of this machine ends with it. Of one of another machine, which may have
    lost its power, or lock files for itself, and where files cannot be locked, it ends when the
    file has not been touched for a while; this waits for that.

    Raises:
        ValueError: another training has it.
    """
    folder = Path(folder).resolve()
    if not comm.is_main_process() or folder in _claims:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path, here = folder / FILE, socket.gethostname()
    holder, begun = _holder(path), time.strftime("%Y-%m-%d %H:%M:%S")
    note = json.dumps({"host": here, "pid": os.getpid(), "begun": begun}) + "\n"
    is_here = holder.get("host", here) == here
    with ExitStack() as stack:
        try:
            if not is_here and _is_touched(path):
                raise BlockingIOError
            lock = locked(
                path, wait=False, note=note, in_use=lambda: is_here and _has_other_holder(path)
            )
            stack.enter_context(lock)
        except BlockingIOError as error:
            raise UserError(
                f"OUTPUT_DIR {folder} is that of another training: process "
                f"{holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown machine')}, "
                f"begun {holder.get('begun', 'at an unknown time')}. Wait for its end or stop it, "
                f"or set another OUTPUT_DIR. If it is surely none, remove {path}."
            ) from error
        ended = threading.Event()
        stack.callback(ended.set)
        threading.Thread(target=_keep_touching, args=(path, ended), daemon=True).start()
        _claims[folder] = stack.pop_all()


def release(folder: str | os.PathLike) -> None:
    """Let other trainings in."""
    if stack := _claims.pop(Path(folder).resolve(), None):
        stack.close()


def _keep_touching(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with suppress(OSError):
            os.utime(path)


def _is_touched(path: Path) -> bool:
    """Watch whether somebody touches the file: no clocks of two machines are compared."""
    logging.getLogger(__name__).warning(
        "%s is of another training: watching it for %d s, whether that lives", path, WATCH
    )
    with suppress(FileNotFoundError):  # it has ended
        before = path.stat().st_mtime_ns
        time.sleep(WATCH)
        return path.stat().st_mtime_ns != before
    return False


def _has_other_holder(path: Path) -> bool:
    """Return whether another process of this machine has the file, which cannot be locked."""
    holder = _holder(path)
    return bool(holder) and holder.get("pid") != str(os.getpid()) and _is_touched(path)


def _holder(path: Path) -> dict[str, str]:
    """Return who has claimed a folder last, or nothing where the file says nothing of it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            holder = json.loads(file.read(MAX_LENGTH))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    if not isinstance(holder, dict):
        return {}
    return {key: printable(value)[:100] for key, value in holder.items()}


@contextmanager
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
