"""Files that are whole or absent, never half written."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it takes the place of ``path`` at the end.

    Folders are made as needed. After an error nothing stays behind.

    Args:
        durable: wait until the disk has the content before the name changes, and then the name:
            whole or absent also after a machine has lost its power. Takes time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if durable:
            _sync(temporary)
        os.replace(temporary, path)
        if durable:
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def printable(text: object) -> str:
    """A name or message for a terminal: control characters, which could rewrite what it shows, and
    bytes that are no text, as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file in UTF-8, whole or not at all; ``durable`` as in :func:`replacing`."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=indent))
