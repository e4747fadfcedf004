"""Faults of a data set, gathered so that all of them are reported at once."""

import logging
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable, write_text

logger = logging.getLogger(__name__)

_SHOWN = 20  # faults, and kinds of them, in a message
LONGEST = 400  # characters of one of them there


class DataFaults(UserError):
    """Every fault that was found, each naming the file and id that it concerns.

    The message shows the first 20; where there are more, also how many there are of each kind.

    Attributes:
        faults: all of them, a text each.
        file: that holds all of them, if :meth:`write_list` has written one.
    """

    def __init__(self, faults: list[str]):
        super().__init__(faults)
        self.faults = list(dict.fromkeys(faults))  # two splits share the classes
        self.file: Path | None = None

    def write_list(self, path: Path) -> None:
        """Write all faults, a line each, to a file that the message names."""
        write_text(path, "".join(f"{printable(fault)}\n" for fault in self.faults))
        self.file = path

    def __str__(self) -> str:
        number = len(self.faults)
        shown = list(map(_line, self.faults[:_SHOWN]))
        if number <= _SHOWN:
            return "\n".join([f"{_count(number, 'fault')} in the data:", *shown])
        kinds = Counter(map(kind_of, self.faults))
        counts = [_line(f"{times:,} x {kind}") for kind, times in kinds.most_common(_SHOWN)]
        if len(kinds) > _SHOWN:
            counts.append(f"  and {_count(len(kinds) - _SHOWN, 'other kind')}")
        title = f"{number:,} faults in the data, the first {_SHOWN}:"
        where = [f"All of them are listed in {self.file}"] if self.file else []
        return "\n".join([title, *shown, "How many of each kind:", *counts, *where])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _line(text: str) -> str:
    text = printable(text)
    return f"  {text if len(text) <= LONGEST else text[:LONGEST] + ' ...'}"


def kind_of(fault: str) -> str:
    """A fault without what is special about it: the file at its beginning, other paths, quoted
    values, lists and numbers."""
    where, _, what = fault.partition(": ")
    text = what if "/" in where else fault
    for special, placeholder in (
        (r"(?<!\w)'(\\.|[^'\\])*'", "'...'"),
        (r"\[[^\[\]]*\]", "[...]"),
        (r"\S*/\S*[^\s.,:)]", "FILE"),
        (r"\d+", "N"),
    ):
        text = re.sub(special, placeholder, text)
    return text


@contextmanager
def faults_listed(path: Path) -> Iterator[None]:
    """Faults that are raised inside and too many for a message are written to the file, too. That
    of an earlier run is removed when there is none any more."""
    try:
        yield
    except DataFaults as error:
        if len(error.faults) > _SHOWN:
            try:
                error.write_list(path)
            except OSError as reason:
                logger.warning(f"The list of all faults cannot be written: {reason}")
        raise
    with suppress(OSError):
        path.unlink()


def raise_if_any(faults: list[str]) -> None:
    """Raise :class:`DataFaults` unless the list is empty."""
    if faults:
        raise DataFaults(faults)


@contextmanager
def gathering(faults: list[str]) -> Iterator[None]:
    """Append the faults that are raised inside to the list, and go on after the block."""
    try:
        yield
    except DataFaults as error:
        faults += error.faults


def repeated(values: Iterable[Hashable]) -> Iterator[tuple[Hashable, int]]:
    """Yield the values that come more than once, and how often."""
    return ((value, times) for value, times in Counter(values).items() if times > 1)


def first_few(names: Sequence[str]) -> str:
    """Join at most five names, as messages list them."""
    return printable(", ".join(names[:5])) + (", ..." if len(names) > 5 else "")
