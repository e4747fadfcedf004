"""The imports of a pickle, found without unpickling it."""

import contextlib
import io
import pickletools
import zipfile
from collections.abc import Iterator
from typing import Any

BYTES = 2**22  # of a pickle that are looked at; that of a large model has a tenth of it


def pickled_imports(filename: str) -> list[str]:
    """
    Args:
        filename: of ``torch.save``, with or without an archive, or a pickle.

    Returns:
        "module.name" of each import, in order; [] for a file that is something else
    """
    names: list[str] = []
    with contextlib.suppress(Exception):  # the bytes may be anything
        content = io.BytesIO(_pickles(filename))
        while True:  # a file without an archive is several pickles; an error ends the last one
            names.extend(_imports(content))
    return names


def _pickles(filename: str) -> bytes:
    if not zipfile.is_zipfile(filename):
        with open(filename, "rb") as f:
            return f.read(BYTES)
    with zipfile.ZipFile(filename) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        with archive.open(name) as f:
            return f.read(BYTES)


def _imports(content: io.BytesIO) -> Iterator[str]:
    """Yield the names that one pickle imports. From protocol 4 on, a name is the last two strings,
    which may have been remembered."""
    strings, memo = ["", ""], []
    last: Any = None
    for operation, argument, _ in pickletools.genops(content):
        kind = operation.name
        if kind in ("GLOBAL", "INST"):
            yield argument.replace(" ", ".")
            continue
        if kind == "STACK_GLOBAL":
            yield ".".join(strings[-2:])
        elif kind == "MEMOIZE":
            memo.append(last)
        elif kind in ("BINGET", "LONG_BINGET"):
            argument = memo[argument] if argument < len(memo) else None
        last = argument
        if isinstance(argument, str):
            strings.append(argument)
