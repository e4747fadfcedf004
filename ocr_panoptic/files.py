"""Files that are whole or absent, never half written. A leaf: every room may import it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it takes the place of ``path`` at the end.

    Folders are made as needed. After an error nothing stays behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Write a JSON file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent))
