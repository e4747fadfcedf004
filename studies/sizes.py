"""Parse sizes and counts on the command line."""

import argparse
from collections.abc import Callable


def sizes(*names: str, example: str) -> Callable[[str], tuple[int, ...]]:
    """Return an argparse type for comma-separated positive integers, one for each name."""

    def parse(text: str) -> tuple[int, ...]:
        numbers = text.split(",")
        if len(numbers) != len(names) or not all(n.isdecimal() and int(n) for n in numbers):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no size; it is {','.join(names)}, as in {example}"
            )
        return tuple(map(int, numbers))

    return parse


def count(text: str) -> int:
    """Parse a positive integer for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
