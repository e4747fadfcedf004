"""Mutated files, and the contract that every reader of files keeps."""

import json
import os
import random
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.program import reason

SECONDS = 20  # after which a reader hangs; none takes a tenth of one
LONGEST_LINE = 3000

ODD_VALUES = (
    *(None, True, False, -1, 0, 1, 255, 256, 65536, 2**31, 2**63, 10**30, 1.5, 1e308),
    *(float("nan"), float("-inf"), "", " ", "no", "1", "0", "\0", ".", "..", "/", "../../x"),
    *("a\x1b[2Jb", "a\nb", "\ud800", "\u202eabc", "x" * 5000, "a" * 300 + "/b", "s3://x/y", "~"),
    *([], {}, [[]], [None], {"": {}}, [0, 0, 0], ["a", "b"], [[[[[[[[]]]]]]]]),
)
ODD_BYTES = (b"\0", b"\xff", b"\x80\x04", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\n", b'"')
WHOLE_FILES = (
    *(b"", b"\0", b"null", b"5", b"[]", b"{}", b'"text"', b"[" * 100000, b'{"a":' * 50000),
    *(
        b"1" * 10000,
        b"\xff\xfe\0",
        b"\xef\xbb\xbf{}",
        b"<html>",
        b"a: &a [*a]",
        b"!!python/name:os",
    ),
    # 9 ** 13 values, by aliases of aliases.
    b"".join(
        b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1) if n > 97 else b"x"] * 9))
        for n in range(97, 110)
    ),
)
PNG_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"iCCP", b"acTL", b"zTXt")


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return data of one to four changes: bytes overwritten, cut out, repeated, the end lost."""
    if rng.random() < 0.05:
        return rng.choice(WHOLE_FILES)
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 2, 4, 30)))
        match rng.randrange(5):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = data[start:end]
            case 2:
                data[start:end] = rng.choice(ODD_BYTES)
            case 3:
                data[start:end] = rng.randbytes(end - start)
            case 4:
                del data[start:]
    return bytes(data)


def mutated_tree(tree: Any, rng: random.Random) -> Any:
    """A copy of a JSON or YAML tree with one to three values replaced, left out or doubled."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            break
        container, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del container[key]
            case 1 if isinstance(container, list):
                container.append(container[key])
            case 1:
                container[str(rng.choice(ODD_VALUES))] = container[key]
            case 2:
                other, place = rng.choice(places)
                container[key] = json.loads(json.dumps(other[place], default=str))
            case _:
                container[key] = rng.choice(ODD_VALUES)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(tree, list | dict):
        return
    for key, value in list(enumerate(tree) if isinstance(tree, list) else tree.items()):
        yield tree, key
        yield from _places(value)


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return mutated_bytes(data, rng)
    return json.dumps(mutated_tree(json.loads(data), rng)).encode()


def mutated_png(data: bytes, rng: random.Random) -> bytes:
    """Mostly with right checksums, so that what follows sees the change."""
    if rng.random() < 0.3:
        return mutated_bytes(data, rng)
    chunks = list(_png_chunks(data))
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(chunks))
        kind, content = chunks[place]
        match rng.randrange(5):
            case 0:
                del chunks[place]
            case 1:
                chunks.insert(rng.randrange(len(chunks) + 1), (kind, content))
            case 2:
                chunks[place] = rng.choice(PNG_CHUNKS), content
            case _:
                chunks[place] = kind, mutated_bytes(content, rng)
        if not chunks:
            break
    return data[:8] + b"".join(map(_png_chunk, chunks))


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        yield data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        place += 12 + length


def _png_chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, content = chunk
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


class Hang(BaseException):
    pass


@contextmanager
def alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def breach(call: Callable[[], object], watched: Path, names: tuple[str, ...]) -> str | None:
    """
    Return what breaks the contract: ``call`` succeeds, or raises what ``run_program`` shows as a
    message; which is one line for each fault and names one of the files. It ends soon, and after an
    error ``watched`` holds what it held.
    """
    before = contents(watched)
    try:
        with alarm():
            call()
    except Hang:
        return f"no end after {SECONDS} s"
    except Exception as error:
        text = reason(error)
        lines = text.splitlines() if isinstance(error, DataFaults) else [text]
        if "Traceback" in text:
            return "a traceback: " + text[-1500:]
        for line in lines:
            if "\n" in line:
                return f"not one line: {line[:500]!r}"
            if len(line) > LONGEST_LINE and not isinstance(error, OSError):
                return f"a line of {len(line)} characters: {line[:300]}"
        if not any(name in text for name in names):
            return f"names no file: {text[:500]}"
        if contents(watched) != before:
            return f"written before the error: {sorted(contents(watched) - before)[:5]}"
    return None


def contents(folder: Path) -> set[tuple[str, int, int]]:
    """Path, size and time of every file below a folder, but what a preparation remembers for its
    next call."""
    return {
        (str(path), path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if not path.is_dir() and ".preparation" not in path.parts
    }


def run_trials(
    trials: int,
    seed: int,
    trial: Callable[[random.Random], str | None],
    canary: Path,
    seconds: float,
) -> dict[str, str]:
    """Breaches: last line -> what happened in the first trial with it. No trial begins after
    ``seconds``."""
    found: dict[str, str] = {}
    end = time.monotonic() + seconds
    for number in range(trials):
        if time.monotonic() > end:
            break
        result = trial(random.Random(f"{seed} {number}"))
        if canary.exists():
            result = "the file's code was run"
            os.remove(canary)
        if result is not None:
            key = result.strip().splitlines()[-1][:120]
            found.setdefault(key, f"seed {seed}, trial {number}: {result}")
    return found
