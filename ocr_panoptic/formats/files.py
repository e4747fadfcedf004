"""Reading and writing files. Writing is atomic: a file is whole or unchanged."""

import gc
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ocr_panoptic.errors import UserError


def printable(text: object) -> str:
    """Return text that is safe in a terminal: control characters and invalid bytes are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """
    Yield a temporary name beside ``path`` to write to; it replaces ``path`` at the end.

    Folders are created as needed. After an error no file stays behind.

    Args:
        durable: whether to wait for the disk, so that the file is whole or absent even after a
            power failure.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the process id, which two containers may share.
    start = os.fsdecode(os.fsencode(path.name)[:200])  # a name has at most 255 bytes
    temporary = path.with_name(f".{start}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        if durable:
            _sync(temporary)
        os.replace(temporary, path)
        if durable:
            _sync(path.parent)
    except OSError as error:  # a full disk's error has no name, others have the temporary one
        if error.errno is not None and error.filename in (None, temporary, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_output_folder(folder: str | os.PathLike, what: str, fix: str) -> None:
    """Create a folder, and check that files can be created in it and listed."""
    try:
        os.makedirs(folder, exist_ok=True)
        os.listdir(folder)
        tempfile.TemporaryFile(dir=os.fsdecode(folder)).close()
    except OSError as error:
        fault = f"cannot be written ({error.strerror})"
        if isinstance(error, FileExistsError):
            fault = "is a file" if os.path.isfile(folder) else "is a link that leads to no folder"
        raise UserError(f"{what} {printable(folder)} {fault}. {fix}") from error


def raise_error(error: OSError) -> None:
    """Raise an error of os.walk, which would otherwise leave out a folder that it cannot read."""
    raise error


def path_argument(name: str, value: Any) -> str:
    """Return the path that a Python function was given as its argument ``name``."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise UserError(f"{name} is {value!r:.100}; expected a path.")
    return str(value)


def as_list(paths: str | os.PathLike | Iterable[str | os.PathLike]) -> list[str | os.PathLike]:
    """Return data files as a list; a single path gives a list of one path, not of its letters."""
    if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable):
        paths = [paths]
    found = list(paths)
    for path in found:
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"data has {path!r:.100}; expected a path, or several.")
    return found


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file in UTF-8 atomically; see :func:`replacing` for ``durable``."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=indent))


@contextmanager
def collection_paused() -> Iterator[None]:
    """
    Pause the garbage collector, also as a decorator.

    It takes most of the time while millions of objects of a JSON are created, which have no cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def refuse_pipe(path: str | os.PathLike) -> None:
    """Refuse a pipe or a device, because reading it may never end."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path}: is a pipe or a device, not a file.")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file."""
    refuse_pipe(path)
    try:
        return json.loads(path.read_bytes())
    except (RecursionError, ValueError) as error:
        reason = str(error).partition(";")[0]  # the rest tells how to lift Python's limit of digits
        raise UserError(f"{path}: is not JSON ({reason}).") from error


class _UniqueKeys(yaml.SafeLoader):
    """A loader that refuses repeated keys: YAML keeps the last value, but a user sees the first."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if (key.tag, key.value) in seen:
                    problem = f"the key {key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        super().flatten_mapping(node)


def read_yaml(path: str | os.PathLike) -> Any:
    """Return the content of a YAML file."""
    refuse_pipe(path)
    with open(path, encoding="utf-8") as file:
        try:
            return yaml.load(file, _UniqueKeys)
        except (yaml.YAMLError, ValueError) as e:  # ValueError: not UTF-8, or the date 2020-99-99
            raise UserError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from e
        except RecursionError as e:
            raise UserError(f"{path} is not valid YAML: it is nested too deeply") from e
