"""Exceptions for users' mistakes, and helpers for error messages."""

import difflib
import re
from collections.abc import Iterable

# Ends errors about a name that the user's own code may add.
IF_OWN = "If your own module adds it, name the module with --import, or import it in Python."


class UserError(ValueError):
    """An unusable input; the message names the value found, the expected value, and the fix."""


class MissingFileError(FileNotFoundError):
    """A file or folder that the user named does not exist."""


class MissingPackageError(ModuleNotFoundError):
    """An optional package that the called function needs is not installed."""


# Parts of the out-of-memory messages of the system, PyTorch, CUDA, C++, the loader of shared
# libraries, OpenCV, and oneDNN (with $, because "... primitive descriptor" has another cause).
NO_MEMORY = re.compile(
    "(?m)allocate memory|out of memory|bad_alloc|failed to map segment|Insufficient memory"
    "|could not create a primitive$"
)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out."""
    return isinstance(error, MemoryError) or NO_MEMORY.search(str(error)) is not None


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """
    Return " Did you mean ...?" with the most similar known word, or "" if no word is similar.

    ``cutoff`` is the similarity, from 0 to 1, that a word needs to be suggested.
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[close[0]]}?" if close else ""
