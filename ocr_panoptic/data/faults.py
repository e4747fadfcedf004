"""Faults of a data set, gathered so that all of them are reported at once."""

from __future__ import annotations


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
