"""The folder of a prediction's results: what it was made with, what is done, the JSON files.

run.json         the model and the options
records/*.jsonl  a line for each image that is done, of each process
missing.txt      the images without results, and why; not there when nothing is missing
left_out.txt     the files of the input that are no images, and what they are
.lock            while a prediction writes there
labels/ ...      the files of the images, see :mod:`.outputs`
panoptic.json    COCO panoptic format, and instances.json COCO's results format: of a panoptic model
labels.json      classes in each image: of a semantic model
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO

from ocr_panoptic.engine.class_names import Classes
from ocr_panoptic.engine.inputs import Item
from ocr_panoptic.engine.outputs import RUN, Record, Writer, panoptic_entries
from ocr_panoptic.errors import FailedWriteError, UserError
from ocr_panoptic.formats.files import locked, naming, printable, replacing, write_json

RECORDS, LOCK = "records", ".lock"
MISSING, LEFT_OUT = "missing.txt", "left_out.txt"


Place = tuple[Path, int]
"""The file of an image's record, and where the record begins in it."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """
    Keep other predictions out of a folder, which is made where needed, until the block's end.

    Raises:
        ValueError: another prediction writes there, or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder}: is a file. Give a new or an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        _lock(folder, LOCK, stack)
        yield


def _lock(folder: Path, name: str, stack: ExitStack) -> None:
    try:
        stack.enter_context(locked(folder / name, wait=False))
    except BlockingIOError as error:
        raise UserError(
            f"--output {folder}: another prediction is writing there. Wait for its end, or give "
            "another folder."
        ) from error


def begin(folder: Path, identity: Mapping[str, Any]) -> None:
    """
    Begin a prediction in a folder, or go on with one; within :func:`alone_in`.

    Args:
        identity: what has to be the same for results to belong together: name -> JSON value.

    Raises:
        ValueError: the folder holds other files, or results of another input, model or options.
    """
    path = folder / RUN
    if not path.is_file():
        own = LOCK, f".{RUN}."  # the second one of a kill while it was written
        if any(not other.name.startswith(own) for other in folder.iterdir()):
            raise UserError(
                f"--output {folder}: holds other files and no {RUN} of a prediction. "
                "Give a new or an empty folder."
            )
        write_json(path, identity, indent=1)
        (folder / RECORDS).mkdir()
        return
    (folder / RECORDS).mkdir(exist_ok=True)
    try:
        former = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: is damaged ({error}); give another --output") from error
    now = json.loads(json.dumps(identity))
    differing = [key for key in {**now, **former} if former.get(key) != now.get(key)]
    if differing and not any(p.stat().st_size for p in (folder / RECORDS).glob("*.jsonl")):
        write_json(path, identity, indent=1)  # that one ended before its first result
    elif differing:
        listed = "; ".join(f"{k} {former.get(k)!r}, now {now.get(k)!r}" for k in differing[:4])
        raise UserError(
            f"--output {folder}: holds results of another input, model or other options: "
            f"{listed}{'; ...' if len(differing) > 4 else ''}. Give another --output, or remove it."
        )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """
    A block that writes a result, and does nothing else that may raise OSError.

    Raises:
        OSError: it could not be written; what to do is said.
    """
    try:
        yield
    except OSError as error:
        free = shutil.disk_usage(folder).free / 2**20
        raise FailedWriteError(
            f"{folder}: a result could not be written ({error}); {free:.0f} MiB are free there. "
            f"The files of images that are done are whole, and {MISSING} names the others. Make "
            "room, and repeat the command: it goes on."
        ) from error


def drop_unfinished(folder: Path) -> None:
    """Remove what processes that were killed have left: lines of the records, and files half
    written."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
    for path in (folder / RECORDS).glob("*.jsonl"):
        with open(path, "rb+") as file:
            whole = 0
            for line in file:
                whole += len(line) if line.endswith(b"\n") else 0
            file.truncate(whole)


def done_items(folder: Path, items: Sequence[Item], writer: Writer) -> dict[str, Place]:
    """Name -> place of the record, of the items whose files are all there and whose image has not
    changed since."""
    by_name, found = {item.name: item for item in items}, {}
    for place, record in _recorded(folder):
        item = by_name.get(record["name"])
        if item and record["stamp"] == list(item.stamp):
            found[item.name] = place
    return {name: place for name, place in found.items() if writer.is_written(by_name[name])}


def recorded_names(folder: Path) -> set[str]:
    """Return the names of all images that have ever been done."""
    return {record["name"] for _, record in _recorded(folder)}


def _recorded(folder: Path) -> Iterator[tuple[Place, Record]]:
    for path in sorted((folder / RECORDS).glob("*.jsonl")):
        offset = 0
        with open(path, "rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # another process is writing it
                    break
                yield (path, offset), json.loads(line)
                offset += len(line)


class RecordFile:
    """
    The records of one process; a line each, written at once.

    Raises:
        ValueError: another prediction writes there.
    """

    def __init__(self, folder: Path, process: int):
        self.folder = folder
        self._stack = ExitStack()
        _lock(folder, f"{RECORDS}/{process}{LOCK}", self._stack)
        path = folder / RECORDS / f"{process}.jsonl"
        self._file = self._stack.enter_context(open(path, "ab", buffering=0))  # noqa: SIM115

    def append(self, record: Record) -> None:
        line = json.dumps(record).encode() + b"\n"
        start = self._file.tell()
        if self._file.write(line) != len(line):  # a full disk took a part of it
            self._file.truncate(start)
            raise FailedWriteError(
                f"{self._file.name}: the record could not be written; the disk is full"
            )

    def close(self) -> None:
        self._stack.close()


def write_missing(folder: Path, missing: Sequence[tuple[Item, str]]) -> None:
    """
    The list of images without results; none where all have them. Written in place: it never grows
    while a run goes on, so that it can still be written when the disk is full.
    """
    write_reasons(folder / MISSING, [(item.file_name, why) for item, why in missing])


def write_reasons(path: Path, reasons: Sequence[tuple[str, str]]) -> None:
    """A list of names, each with a reason, a line each; no file where there is none."""
    if not reasons:
        path.unlink(missing_ok=True)
        return
    lines = "".join(f"{printable(name)}\t{printable(why)}\n" for name, why in reasons).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    with naming(path), os.fdopen(descriptor, "wb") as file:
        file.write(lines)
        file.truncate()


def merge(
    folder: Path, items: Sequence[Item], places: Mapping[str, Place], classes: Classes
) -> None:
    """Write the JSON files of all images that are done, in their order; ids count from 1. One
    record is in memory at a time."""
    records = read_records(items, places)
    if classes.categories:
        _merge_panoptic(folder, records, classes)
        return
    listed = [
        {"label": int(label), "name": name, "color": list(color)}
        for label, name, color in zip(classes.labels, classes.names, classes.colors)
    ]
    with _json_file(folder / "labels.json") as file:
        file.write(f'{{"classes": {json.dumps(listed)},\n"images": [')
        entries = _ListWriter(file)
        for item, record in records:
            known = {key: record[key] for key in ("height", "width", "segments")}
            entry = {"file_name": item.file_name, "labels": f"{item.name}.png", **known}
            entries.append(entry)
        file.write("\n]}\n")


def _merge_panoptic(folder: Path, records: Iterator[tuple[Item, Record]], classes: Classes) -> None:
    with (
        _json_file(folder / "panoptic.json") as panoptic,
        _json_file(folder / "instances.json") as instances,
    ):
        panoptic.write('{"annotations": [')
        instances.write("[")
        annotations, results, images = _ListWriter(panoptic), _ListWriter(instances), []
        for number, (item, record) in enumerate(records, 1):
            image, annotation, found = panoptic_entries(number, item, record)
            images.append(image)
            annotations.append(annotation)
            for result in found:
                results.append(result)
        panoptic.write(f'\n],\n"images": {json.dumps(images)},\n')
        panoptic.write(f'"categories": {json.dumps(classes.categories)}}}\n')
        instances.write("\n]\n")


def read_records(
    items: Sequence[Item], places: Mapping[str, Place]
) -> Iterator[tuple[Item, Record]]:
    """The records of the items that are done, one after the other."""
    with ExitStack() as stack:
        files: dict[Path, BufferedReader] = {}
        for item in items:
            if item.name not in places:
                continue
            path, offset = places[item.name]
            if path not in files:
                files[path] = stack.enter_context(open(path, "rb"))
            files[path].seek(offset)
            yield item, json.loads(files[path].readline())


@contextmanager
def _json_file(path: Path) -> Iterator[TextIO]:
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        yield file


class _ListWriter:
    """The entries of a JSON list, a line each."""

    def __init__(self, file: TextIO):
        self._file, self._separator = file, "\n"

    def append(self, entry: dict[str, Any]) -> None:
        self._file.write(self._separator + json.dumps(entry))
        self._separator = ",\n"
