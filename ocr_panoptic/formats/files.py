"""Read and write files. Writing is atomic: a file is written completely or left unchanged."""

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
    """Return text that is safe to print: control characters and invalid bytes are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """
    Yield a temporary path to write to; after the ``with`` block, that file replaces ``path``.

    Missing folders are created. After an error, the temporary file is removed.

    Args:
        durable: whether to wait for the disk, so that the file is whole or absent even after a
            power failure.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random token, because two containers may share a process id.
    start = os.fsdecode(os.fsencode(path.name)[:200])  # a file name has at most 255 bytes
    temporary = path.with_name(f".{start}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        if durable:
            _sync(temporary)
        os.replace(temporary, path)
        if durable:
            _sync(path.parent)
    except OSError as error:  # an error that names no file (disk full) or the temporary file
        if error.errno is not None and error.filename in (None, temporary, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_output_folder(folder: str | os.PathLike, what: str, fix: str) -> None:
    """
    Create a folder; raise UserError if it cannot be listed or no file can be created in it.

    Args:
        what: description of the folder, at the beginning of the message.
        fix: advice at the end of the message.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        os.listdir(folder)
        tempfile.TemporaryFile(dir=os.fsdecode(folder)).close()
    except OSError as error:
        fault = f"is not writable ({error.strerror})"
        if isinstance(error, FileExistsError):
            fault = "is a file" if os.path.isfile(folder) else "is a broken link"
        raise UserError(f"{what} {printable(folder)} {fault}. {fix}") from error


def raise_error(error: OSError) -> None:
    """Raise an error; with ``onerror=raise_error``, os.walk does not skip unreadable folders."""
    raise error


def path_argument(name: str, value: Any) -> str:
    """Return ``value`` as text; raise UserError, with the argument's name, if it is not a path."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise UserError(f"{name} is {value!r:.100}; expected a path.")
    return str(value)


def as_list(paths: object) -> list[str | os.PathLike]:
    """Return one or several paths as a list; raise UserError for anything that is not a path."""
    if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable):
        paths = [paths]
    listed = list(paths)
    for path in listed:
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"data contains {path!r:.100}; expected a path, or a list of paths.")
    return listed


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file in UTF-8 atomically."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=indent))


def write_lists(path: Path, **lists: Iterable) -> None:
    """
    Write a JSON object whose values are lists atomically, with one list entry per line.

    An entry of type str must already be a JSON text, which takes a fifth of its object's memory.
    """
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        start = "{"
        for name, entries in lists.items():
            file.write(f'{start}"{name}": [\n')
            texts = (x if isinstance(x, str) else json.dumps(x) for x in entries)
            file.writelines(f",\n{text}" if place else text for place, text in enumerate(texts))
            file.write("\n]")
            start = ", "
        file.write("}\n")


@contextmanager
def collection_paused() -> Iterator[None]:
    """
    Pause the garbage collector in a ``with`` block or in a decorated function.

    Without the pause, garbage collection takes most of the time of parsing a large JSON.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise UserError if it is not valid JSON."""
    try:
        return json.loads(path.read_bytes())
    except (RecursionError, ValueError) as error:
        reason = str(error).partition(";")[0]  # the rest is about Python's limit on digits
        raise UserError(f"{path}: not valid JSON ({reason}).") from error


class _UniqueKeys(yaml.SafeLoader):
    """A YAML loader that refuses repeated keys; PyYAML would silently keep the last value."""

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
    """Return the content of a YAML file; raise UserError if it is not valid or repeats a key."""
    with open(path, encoding="utf-8") as file:
        try:
            return yaml.load(file, _UniqueKeys)
        except (yaml.YAMLError, ValueError) as e:  # ValueError: not UTF-8, or the date 2020-99-99
            raise UserError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from e
        except RecursionError as e:
            raise UserError(f"{path} is not valid YAML: it is nested too deeply") from e
