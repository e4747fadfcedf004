"""Standard output whose reader may go before the end, as ``head`` or a terminal does."""

import errno
import io
import os
import sys


class _Output(io.FileIO):
    def write(self, content: bytes) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(content)


def outlive_reader() -> None:
    """Drop what is printed when nobody reads it any more, so that the program goes on: it has
    files to write."""
    stdout = sys.stdout
    if stdout is None or stdout is not sys.__stdout__:  # closed, or another program's
        return
    stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(stdout.fileno(), "wb", closefd=False)),
        stdout.encoding,
        stdout.errors,
        line_buffering=stdout.line_buffering,
    )
