"""User errors, whose messages are for people; any other exception is a defect of the program."""

import errno

PACKAGE = __package__
FULL = (errno.ENOSPC, errno.EDQUOT)  # of disks


class UserError(ValueError):
    """An input that cannot be used; the message says what was found, expected, and the fix."""


class MissingFileError(FileNotFoundError):
    """A file or folder that the user named is not there."""


class MissingPackageError(ModuleNotFoundError):
    """A package that this use needs, and no other, is not installed."""


class FailedWriteError(OSError):
    """A file, video or window could not be written."""


def is_user_error(error: Exception) -> bool:
    """
    Check whether the message of an error is for the user: it is one of this module's, a loss or a
    prediction that is not finite, the end of a process that was started, whose log has its reason,
    or the system's about a file or a full disk.
    """
    if isinstance(error, OSError) and (error.filename is not None or error.errno in FULL):
        return True
    if isinstance(error, ChildProcessError):
        return error.errno is None  # else the system's: there is no such process
    ours = UserError | MissingFileError | MissingPackageError | FailedWriteError
    return isinstance(error, ours | FloatingPointError)
