"""Pieces of work on files, of which a repetition or a continued run does only what is missing.

A folder holds for each journal

    <name>.jsonl          a header, then a line for each piece of work, once all are done; each a
                          checksum and JSON
    <name>.<pid>.part     lines of a run that has not come to its end
    <name>/               the files that such a run has made
"""

import glob
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from zlib import crc32

from ocr_panoptic.files import replacing

from .collection import collection_paused
from .faults import raise_if_any
from .fingerprint import State, file_digest, file_state
from .parallel import map_with_progress

logger = logging.getLogger(__name__)

FOLDER = ".preparation"

Item = TypeVar("Item")
# (item, file to write or None) -> faults, and where there is none the result
Function = Callable[[Item, Path | None], tuple[list[str], str]]


class Work(NamedTuple):
    """
    Attributes:
        key: names the piece among all of a journal.
        recipe: a digest of all that the result follows from besides the files.
        inputs: the files read.
        output: the file written.
    """

    key: str
    recipe: str
    inputs: tuple[Path, ...]
    output: Path | None = None


class Line(NamedTuple):
    """A piece of work that is done; states and digests as they were then."""

    key: str
    recipe: str
    inputs: list[State]
    output: State | None
    digests: list[str]  # of the inputs, then of the output
    result: str


class Journal:
    """
    Args:
        folder: of what is made of the results; the journal is in a folder of its own in it.
        name: of the journal; a file name.
    """

    def __init__(self, folder: Path, name: str):
        self.name = name
        folder = folder / FOLDER
        self.path = folder / f"{name}.jsonl"
        self.made = folder / name
        self._header, self._known = _read(self.path)
        self._parts = sorted(folder.glob(f"{glob.escape(name)}.*.part"))
        self._saved = list(self._known)
        for part in self._parts:
            self._known |= _read(part)[1]
        self._works: list[Work] = []
        self._lines: list[Line] = []
        self._anew = False

    def do(
        self,
        function: Function,
        items: Sequence[Item],
        works: Sequence[Work],
        description: str,
        workers: int | None = None,
    ) -> None:
        """
        Call ``function`` for the items of which it has not been called, or whose recipe or files
        have changed since. Outputs remain apart until :meth:`publish`.

        Args:
            works: what is done for each of the items.
            description, workers: as :func:`map_with_progress`.

        Raises:
            DataFaults: those that the function found. The rest is done and need not be repeated.
        """
        self._works = list(works)
        known = [self._known.get(work.key) for work in works]
        lines = [
            line if line and self._is_done(work, line) else None
            for work, line in zip(works, known, strict=True)
        ]
        rest = [place for place, line in enumerate(lines) if line is None]
        if rest and len(rest) < len(lines):
            logger.info(f"{description}: {len(lines) - len(rest)} of {len(lines)} are done already")
        if rest:
            self._anew = True
            do = partial(_do, function, self.made)
            tasks = [(items[place], works[place], known[place]) for place in rest]
            faults = []
            done = map_with_progress(do, tasks, description, workers)
            for place, (found, line) in zip(rest, done, strict=True):
                faults += found
                lines[place] = line
            raise_if_any(faults)
        self._lines = lines

    @property
    def results(self) -> list[str]:
        """Of all items, in their order."""
        return [line.result for line in self._lines]

    def publish(self) -> None:
        """Move the outputs to their places."""
        for work, line in zip(self._works, self._lines, strict=True):
            if work.output and file_state(work.output) != line.output:
                work.output.parent.mkdir(parents=True, exist_ok=True)
                os.replace(self.made / work.key, work.output)

    def is_finished(self, recipe: str = "", written: Sequence[Path] = ()) -> bool:
        """Whether :meth:`finish` has been called after all this, and the files are as then."""
        return (
            not self._anew
            and not self._parts
            and self._saved == [work.key for work in self._works]
            and self._header == _header(recipe, written)
        )

    def finish(self, recipe: str = "", written: Sequence[Path] = ()) -> None:
        """Keep the lines for the next time, unless they are there.

        Args:
            recipe, written: files made of all results, and what they follow from besides them.
        """
        if self.is_finished(recipe, written):
            return
        with replacing(self.path) as temporary, open(temporary, "w") as file:
            for line in (_header(recipe, written), *self._lines):
                file.write(_as_text(line))
        for part in self.path.parent.glob(f"{glob.escape(self.made.name)}.*.part"):
            part.unlink(missing_ok=True)
        shutil.rmtree(self.made, ignore_errors=True)

    def _is_done(self, work: Work, line: Line) -> bool:
        return (
            line.recipe == work.recipe
            and line.inputs == [file_state(path) for path in work.inputs]
            and (
                work.output is None
                or line.output in (file_state(work.output), file_state(self.made / work.key))
            )
        )


def _do(
    function: Function, folder: Path, task: tuple[Item, Work, Line | None]
) -> tuple[list[str], Line | None]:
    """Do a piece of work, unless files changed their times alone; keep its line."""
    item, work, known = task
    before = [file_state(path) for path in work.inputs]
    made = folder / work.key if work.output else None
    outputs = [path for path in (work.output, made) if path and file_state(path)]
    line = None
    if known and known.recipe == work.recipe and all(before):
        digests = [file_digest(path) for path in work.inputs]
        if digests == known.digests[: len(digests)]:
            same = [path for path in outputs if file_digest(path) == known.digests[-1]]
            if work.output is None or same:
                state = file_state(same[-1]) if same else None
                line = known._replace(inputs=before, output=state)
    if line is None:
        faults, result = function(item, made)
        if faults:
            return faults, None
        digests = [file_digest(path) for path in (*work.inputs, *([made] if made else []))]
        changed = [
            path
            for path, state in zip(work.inputs, before, strict=True)
            if file_state(path) != state
        ]
        if changed:  # the result may be of the former content, the digest of the new one
            return [f"{path}: has changed while it was read." for path in changed], None
        state = file_state(made) if made else None
        line = Line(work.key, work.recipe, before, state, digests, result)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.{os.getpid()}.part", "a") as file:
        file.write(_as_text(line))
    return [], line


def _header(recipe: str, written: Sequence[Path]) -> dict:
    states = [file_state(path) for path in written]
    return {"recipe": recipe, "written": [state and list(state) for state in states]}


def _as_text(line: dict | Line) -> str:
    text = json.dumps(line)
    return f"{crc32(text.encode()):08x} {text}\n"


@collection_paused()
def _read(path: Path) -> tuple[dict | None, dict[str, Line]]:
    """Header and lines of a journal's file; a line that cannot be used is left out: it is done
    again."""
    header, lines = None, {}
    for content in _whole_lines(path):
        if isinstance(content, dict):
            header = content
            continue
        line = Line(*content)
        inputs = [tuple(state) for state in line.inputs]
        output = line.output and tuple(line.output)
        lines[line.key] = line._replace(inputs=inputs, output=output)
    return header, lines


def _whole_lines(path: Path) -> Iterator[object]:
    """Others were half-written when a process was killed, have been damaged, or are an earlier
    version's."""
    if file_state(path) is None:
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            checksum, _, text = line.rstrip("\n").partition(" ")
            if text and checksum == f"{crc32(text.encode()):08x}":
                yield json.loads(text)
