"""What programs print: to a reader who may go before the end, as ``head`` or a terminal does, and
without characters that would rewrite a terminal."""

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
    """Drop what is printed, to standard output or error, when nobody reads it any more, so that the
    program goes on: it has files to write."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # closed, or another program's
        stream.flush()
        outliving = io.TextIOWrapper(
            io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False)),
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, outliving)


def printable(text: object, keep: str = "") -> str:
    """A name or message for a terminal: control characters, which could rewrite what it shows, and
    bytes that are no text, as escapes; but for the characters ``keep``."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in str(text))
