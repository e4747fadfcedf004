"""User errors, whose messages are for people; any other exception is a defect of the program."""

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
