"""Faults of a data set, gathered so that all of them are reported at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class DataFaults(ValueError):
    """Every fault that was found, each naming the file and id that it concerns.

    Attributes:
        faults: one line each.
    """

    def __init__(self, faults: list[str]):
        self.faults = faults
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__("\n".join([f"{count} in the data:", *(f"  {fault}" for fault in faults)]))


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


def first_few(names: Sequence[str]) -> str:
    """At most five names, as messages list them."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
