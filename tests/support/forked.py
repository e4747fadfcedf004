"""Run programs in forks of this process, which saves the seconds that imports take."""

import gc
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from typing import IO

from tqdm import tqdm


class Forked:
    """
    A replacement for ``subprocess.Popen([python, script, ...])`` that forks this process.

    The script's stdout and stderr both go to the file ``stdout``.
    """

    def __init__(
        self,
        command: Sequence[object],
        *,
        stdout: IO,
        stderr: int | None = None,  # ignored: stderr always goes to ``stdout``
        env: dict[str, str] | None = None,
        start_new_session: bool = False,
    ):
        arguments = (list(map(str, command[1:])), stdout.fileno(), env, start_new_session)
        self._process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.poll()


def _run(argv: list[str], output: int, env: dict[str, str] | None, new_session: bool) -> None:
    gc.freeze()  # otherwise each collection would copy all pages of the parent's objects
    if new_session:
        os.setsid()
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(output, number)
        setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    tqdm.set_lock(threading.RLock())  # a killed process would keep the parent's lock
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
