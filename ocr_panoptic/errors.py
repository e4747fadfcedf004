"""User errors, whose messages are for people; any other exception is a defect of the program."""

import difflib
from collections.abc import Iterable

PACKAGE = __package__


class UserError(ValueError):
    """An input that cannot be used; the message says what was found, expected, and the fix."""


class MissingFileError(FileNotFoundError):
    """A file or folder that the user named is not there."""


class MissingPackageError(ModuleNotFoundError):
    """A package that this use needs, and no other, is not installed."""


class FailedWriteError(OSError):
    """A file or video could not be written."""


# What a program says in a line; a FloatingPointError is a training that diverges.
USER_ERRORS = (
    UserError, MissingFileError, MissingPackageError, FailedWriteError, FloatingPointError
)  # fmt: skip

# What the libraries say, each by an exception of its own, where memory cannot be had: the system,
# PyTorch, its CUDA, C++, the loader of shared libraries, OpenCV.
NO_MEMORY = (
    "allocate memory", "out of memory", "bad_alloc", "failed to map segment", "Insufficient memory"
)  # fmt: skip


def lacks_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory cannot be had."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return " Did you mean ...?" with the known word that is most alike, capitals apart; "" where
    none is alike."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[close[0]]}?" if close else ""
