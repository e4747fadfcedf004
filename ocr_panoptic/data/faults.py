"""Faults of a data set, gathered so that they are reported together."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable, write_text

_Value = TypeVar("_Value", bound=Hashable)
_SHOWN = 20  # largest number of faults in a message
_LONGEST = 480  # largest number of characters of a fault in a message


class DataFaults(UserError):
    """
    An error with all faults that were found in the data; its message shows the first 20.

    Attributes:
        file: path of a text file with all faults; None if no file was written.
    """

    def __init__(self, faults: list[str]):
        super().__init__(faults)
        self.faults = list(dict.fromkeys(faults))  # splits with the same classes repeat faults
        self.file: Path | None = None

    def __str__(self) -> str:
        number = len(self.faults)
        shown = [f"  {_shortened(printable(fault))}" for fault in self.faults[:_SHOWN]]
        if number > _SHOWN:
            where = f" (all are listed in {self.file})" if self.file else ""
            shown.append(f"  and {number - _SHOWN:,} more{where}")
        return "\n".join([f"{number:,} fault{'s' * (number > 1)} in the data:", *shown])


def _shortened(fault: str) -> str:
    """Leave out the middle of a long fault: its end says what to do."""
    half = _LONGEST // 2
    return fault if len(fault) <= _LONGEST else f"{fault[:half]} ... {fault[5 - half :]}"


@contextmanager
def faults_listed(path: Path) -> Iterator[None]:
    """If the ``with`` block raises DataFaults with more than 20 faults, write them to ``path``."""
    try:
        yield
    except DataFaults as error:
        if len(error.faults) > _SHOWN:
            write_text(path, "".join(f"{printable(fault)}\n" for fault in error.faults))
            error.file = path
        raise


def raise_if_any(faults: list[str]) -> None:
    """Raise :class:`DataFaults` unless the list is empty."""
    if faults:
        raise DataFaults(faults)


@contextmanager
def gathering(faults: list[str]) -> Iterator[None]:
    """Catch the DataFaults that the ``with`` block raises, and append its faults to the list."""
    try:
        yield
    except DataFaults as error:
        faults += error.faults


def repeated(values: Iterable[_Value]) -> Iterator[tuple[_Value, int]]:
    """Yield each value that occurs more than once, and how often."""
    return ((value, times) for value, times in Counter(values).items() if times > 1)


def first_few(names: Sequence[str]) -> str:
    """Join the first five names for a message, followed by "..." if there are more."""
    return printable(", ".join(names[:5])) + (", ..." if len(names) > 5 else "")
