"""An index of a data set's images, kept between runs: their records, and what a check found.

One sqlite file for each split lies in the user's cache (``$XDG_CACHE_HOME/ocr_panoptic``, by
default ``~/.cache/ocr_panoptic``), nothing in the data. It may be removed whenever no training
reads it. Of an image it has

    record   JSON, which the split's source makes what Detectron2 takes of
    wide, usable   it is wider than high; an annotation of it is no crowd
    state, result   sizes and times of its files when they were found without fault, and what they
                    hold, JSON
"""

import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import check_output_folder, collection_paused, locked, replacing

from .faults import raise_if_any
from .fingerprint import digest, file_state
from .parallel import imap_with_progress

logger = logging.getLogger(__name__)

VERSION = 4
# Images of a split, above which a start trusts the times of folders: two calls for every file take
# as long as the rest of it.
MANY = 20_000
WAIT = 600  # seconds, for another process's writing
SAVED = 512  # images whose check is kept at a time


class Row(NamedTuple):
    """An image as a source describes it before any is read."""

    record: dict
    wide: bool
    usable: bool


class IndexSource(Protocol):
    """The origin of one split's records."""

    name: str  # of the data set

    def key(self) -> list:
        """Return what tells this split's index from others; JSON can hold it."""

    def recipe(self) -> list:
        """Return all that a check follows from besides record and files; JSON can hold it."""

    def state(self) -> Any:
        """Return what changes whenever the records do; JSON can hold it."""

    def read(self) -> tuple[dict[str, Any], Iterable[Row]]:
        """
        Returns:
            what is common to all images, which JSON can hold; the images.

        Raises:
            FileNotFoundError, DataFaults: what is wrong with them.
        """

    def files(self, record: dict) -> tuple[Path, ...]:
        """Return the files that a check of the image reads."""

    def check(self, record: dict) -> tuple[list[str], Any]:
        """
        Returns:
            the faults of an image, each with file and id; what it holds, for JSON.
        """


class DamagedIndex(UserError):
    """An index that cannot be read."""

    def __init__(self, path: Path, reason: object = "damaged"):
        super().__init__(f"{path}: cannot be read ({reason}). Remove it: the next start makes it.")


class Index:
    """The index of a source, made or made anew where its records have changed.

    Raises:
        FileNotFoundError, DataFaults: as :meth:`IndexSource.read`.
        ValueError: the cache cannot be written, or what is read changes meanwhile; later, of any
            method: the index was made anew by another process, as its records have changed.
    """

    def __init__(self, source: IndexSource):
        self.source = source
        self.path = index_file(source)
        self._connection: tuple[tuple[int, int], sqlite3.Connection] | None = None
        self._records: str | None = None  # by which a later one in its place is told
        if not self._is_current():
            with locked(self.path.with_suffix(".lock"), wait=True):
                if not self._is_current():
                    self._write()
        self._records = self._fact("records")
        self.common = self._fact("common")

    def __len__(self) -> int:
        return next(self._read("SELECT count(*) FROM image"))[0]

    def record(self, place: int) -> dict:
        row = next(self._read("SELECT record FROM image WHERE place = ?", (place,)), ("",))
        return self._parsed(row[0])

    def records(self) -> Iterator[dict]:
        for (text,) in self._read("SELECT record FROM image ORDER BY place"):
            yield self._parsed(text)

    def results(self) -> Iterator[Any]:
        """Yield what a check found of each image."""
        for (text,) in self._read("SELECT result FROM image ORDER BY place"):
            yield self._parsed(text)

    def column(self, expression: str) -> list[int]:
        """Return an SQL expression of the columns of "image", such as "wide", for all images."""
        return [row[0] for row in self._read(f"SELECT {expression} FROM image ORDER BY place")]

    def check(self, workers: int | None = None, *, wholly: bool = False) -> None:
        """Check the images that have not been found without fault, or have changed since.

        Args:
            workers: processes, see :func:`.imap_with_progress`.
            wholly: look at every file; else those of more than MANY images are taken for
                unchanged where nothing was added, removed or replaced in their folders.

        Raises:
            DataFaults: what is wrong. The rest need not be checked again.
        """
        if self._is_checked(wholly):
            return
        with locked(self.path.with_suffix(".lock"), wait=True):
            if not self._is_checked(wholly):
                self._check(workers)

    def _check(self, workers: int | None) -> None:
        rows = self._read("SELECT place, record, state FROM image ORDER BY place")
        rows = [(place, self._parsed(record), state) for place, record, state in rows]
        names = {os.path.dirname(file) for _, r, _ in rows for file in self.source.files(r)}
        folders = {name: _folder_time(name) for name in sorted(names)}
        todo = [
            (p, r) for p, r, state in rows if state is None or state != _state_of(self.source, r)
        ]
        if 0 < len(todo) < len(rows):
            logger.info(
                "%s: %d of %d images are checked already and have not changed",
                self.source.name,
                len(rows) - len(todo),
                len(rows),
            )
        faults: list[str] = []
        done: list[tuple[str | None, str | None, int]] = []
        results = imap_with_progress(
            partial(_check, self.source), todo, f"check {self.source.name}", workers
        )
        with _to_write(self.path) as connection:
            for place, found, state, result in results:
                faults += found
                done.append((None, None, place) if found else (state, result, place))
                if len(done) == SAVED:
                    _save(connection, done)
            _save(connection, done)
            raise_if_any(faults)
            with connection:
                connection.execute(
                    "INSERT OR REPLACE INTO fact VALUES ('folders', ?)", (json.dumps(folders),)
                )

    def _is_checked(self, wholly: bool) -> bool:
        if any(self._read("SELECT 1 FROM image WHERE state IS NULL LIMIT 1")):
            return False
        if not wholly and len(self) > MANY:
            known = self._fact("folders")
            return known is not None and known == {name: _folder_time(name) for name in known}
        rows = self._read("SELECT record, state FROM image")
        return all(state == _state_of(self.source, self._parsed(record)) for record, state in rows)

    def _is_current(self) -> bool:
        wanted = {"recipe": self._recipe(), "state": json.dumps(self.source.state())}
        try:
            facts = dict(self._read("SELECT key, value FROM fact"))
            # Looked for by their keys, which may be damaged where the values are not.
            is_whole = None not in (self._fact("common"), self._fact("records"))
            return is_whole and wanted.items() <= facts.items()
        except DamagedIndex:  # or there is none
            self._connection = None
            return False

    def _recipe(self) -> str:
        return json.dumps([VERSION, *self.source.recipe()])

    @collection_paused()
    def _write(self) -> None:
        state = json.dumps(self.source.state())
        common, rows = self.source.read()
        known = self._known()
        # Of a damaged index: sqlite would write its parts into the new one.
        Path(f"{self.path}-journal").unlink(missing_ok=True)
        found = hashlib.blake2b(digest_size=16)
        with replacing(self.path) as temporary:
            with _to_write(temporary) as connection, connection:
                connection.execute("CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT)")
                connection.execute(
                    "CREATE TABLE image (place INTEGER PRIMARY KEY, record TEXT, wide INTEGER, "
                    "usable INTEGER, state TEXT, result TEXT)"
                )
                for place, row in enumerate(rows):
                    text = json.dumps(row.record)
                    found.update(text.encode())
                    checked = known.get(digest(text), (None, None))
                    connection.execute(
                        "INSERT INTO image VALUES (?, ?, ?, ?, ?, ?)",
                        (place, text, int(row.wide), int(row.usable), *checked),
                    )
                facts = {
                    "recipe": self._recipe(),
                    "state": state,
                    "common": json.dumps(common),
                    "records": json.dumps(found.hexdigest()),
                }
                connection.executemany("INSERT INTO fact VALUES (?, ?)", facts.items())
            if json.dumps(self.source.state()) != state:
                raise UserError(
                    f"{self.source.name}: its annotations have changed while they were read. Start "
                    "again when they are complete."
                )
        self._connection = None

    def _known(self) -> dict[str, tuple[str, str]]:
        """Return the checks that a former index has, by the digests of their records."""
        try:
            recipe = self._read("SELECT value FROM fact WHERE key = 'recipe'")
            if next(recipe, None) != (self._recipe(),):
                return {}
            rows = self._read("SELECT record, state, result FROM image WHERE state IS NOT NULL")
            return {digest(record): (state, result) for record, state, result in rows}
        except DamagedIndex:
            return {}

    def _fact(self, key: str) -> Any:
        row = next(self._read("SELECT value FROM fact WHERE key = ?", (key,)), None)
        return None if row is None else self._parsed(row[0])

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, TypeError) as error:
            raise DamagedIndex(self.path) from error

    def _read(self, query: str, values: tuple = ()) -> Iterator[tuple]:
        try:
            yield from self._connected().execute(query, values)
        except sqlite3.Error as error:
            raise DamagedIndex(self.path, error) from error

    def _connected(self) -> sqlite3.Connection:
        """A connection is of one thread: others, and copies in other processes, have their own."""
        owner = os.getpid(), threading.get_ident()
        if self._connection is None or self._connection[0] != owner:
            # To write, too: only so sqlite takes back what a killed process has half written.
            connection = sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, timeout=WAIT)
            self._connection = owner, connection
            if self._records not in (None, self._fact("records")):
                self._connection = None
                raise UserError(
                    f"{self.source.name}: its annotations have changed since the start, and "
                    f"{self.path} was made anew. Start again."
                )
        return self._connection[1]

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_connection": None}


def cache_folder() -> Path:
    """
    Raises:
        ValueError: it cannot be written.
    """
    root = os.getenv("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(os.path.abspath(root), "ocr_panoptic")
    fix = "Set XDG_CACHE_HOME to a folder that you can write."
    check_output_folder(folder, "The cache of what is known of data,", fix)
    return folder


def index_file(source: IndexSource) -> Path:
    """Return the file of a split's index."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", source.name)
    return cache_folder() / f"{name}-{digest(source.key())}.sqlite"


@contextmanager
def _to_write(path: Path) -> Iterator[sqlite3.Connection]:
    """
    Raises:
        ValueError: what is written meanwhile cannot be.
    """
    try:
        with closing(sqlite3.connect(path, timeout=WAIT)) as connection:
            yield connection
    except sqlite3.OperationalError as error:
        raise UserError(
            f"{path.parent}: what is known of data cannot be written ({error}). Free space there, "
            "or set XDG_CACHE_HOME to a folder that you can write."
        ) from error
    except sqlite3.DatabaseError as error:
        raise DamagedIndex(path, error) from error


def _check(source: IndexSource, task: tuple[int, dict]) -> tuple[int, list[str], str, str]:
    place, record = task
    state = _state_of(source, record)
    faults, result = source.check(record)
    return place, faults, state, json.dumps(result)


def _state_of(source: IndexSource, record: dict) -> str:
    return json.dumps([file_state(path) for path in source.files(record)])


def _save(connection: sqlite3.Connection, done: list[tuple[str | None, str | None, int]]) -> None:
    with connection:
        connection.executemany("UPDATE image SET state = ?, result = ? WHERE place = ?", done)
    done.clear()


def _folder_time(name: str) -> int | None:
    try:
        return os.stat(name or ".").st_mtime_ns
    except OSError:
        return None
