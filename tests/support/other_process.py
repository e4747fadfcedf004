"""Another process that is in the way."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_held(path: Path) -> Iterator[None]:
    """Another process has the lock of a file."""
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-S", "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()
