"""Fingerprints of files, which tell whether something has changed."""

import hashlib
import json
import os
import stat
from pathlib import Path

CHUNK = 1 << 20  # bytes

State = tuple[int, int]  # size in bytes, time of the last change in ns


def digest(*parts: object) -> str:
    """A hash of values that JSON can hold."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """A hash of a file's content."""
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def file_state(path: Path) -> State | None:
    """Return what tells a file from a later one without reading it; None where there is no file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError for a NUL in the name
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
