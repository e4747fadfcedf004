"""What a program shows on its terminal, and what it writes to ``log.txt``.

The terminal has the messages of this package, from INFO on; ``log.txt`` has everything: those of
DEBUG, and what Detectron2, PyTorch and others say and warn of.
"""

import logging
import os
import sys
from pathlib import Path

from termcolor import colored
from tqdm import tqdm

from ocr_panoptic.mistakes import PACKAGE, TRAINING_LOOP

LOG_FILE = "log.txt"
# Of Detectron2, where no progress bar shows the same.
PROGRESS = ("detectron2.utils.events", "detectron2.evaluation.evaluator")
# So many lines after a warning it is out of sight, and repeated at the end.
OUT_OF_SIGHT = 10


def printable(text: str) -> str:
    """``text`` with the characters escaped that a terminal would obey, those of strange file names
    for example. Lines and tabs stay."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def has_terminal() -> bool:
    """Whether somebody sees a progress bar."""
    return sys.stderr is not None and sys.stderr.isatty()


class Console(logging.Handler):
    """
    Prints the messages of this package, Detectron2's errors, and its lines of progress where there
    is no bar: warnings and errors on stderr, others on stdout.
    """

    def __init__(self):
        super().__init__(logging.INFO)
        self.addFilter(self._is_shown)
        self._lines = 0
        self._warnings: dict[str, int] = {}  # and the number of lines before

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = printable(self.format(record))
            if record.levelno >= logging.ERROR:
                text = f"{colored('ERROR', 'red')}: {text}"
            elif record.levelno >= logging.WARNING:
                text = f"{colored('WARNING', 'yellow')}: {text}"
                self._warnings[text] = self._lines
            self._print(text, to_stderr=record.levelno >= logging.WARNING)
        except Exception:
            self.handleError(record)

    def repeat_warnings(self) -> None:
        """Those that may be out of sight, each once."""
        past = [text for text, line in self._warnings.items() if self._lines - line > OUT_OF_SIGHT]
        self._warnings.clear()
        if past:
            self._print("\n".join(["Warnings of this run, again:", *past]), to_stderr=True)

    def _print(self, text: str, to_stderr: bool) -> None:
        stream = sys.stderr if to_stderr else sys.stdout
        tqdm.write(text, file=stream)  # above the progress bar
        stream.flush()
        self._lines += text.count("\n") + 1

    @staticmethod
    def _is_shown(record: logging.LogRecord) -> bool:
        origin = record.name.partition(".")[0]
        if origin == PACKAGE:
            return True
        if record.levelno >= logging.ERROR:
            # The loop logs the traceback of what ends the program, which run_program tells.
            return origin == "detectron2" and record.name != TRAINING_LOOP
        return record.name in PROGRESS and not has_terminal()


class _LogFile(logging.FileHandler):
    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        form = "[%(asctime)s] %(name)s %(levelname)s: %(message)s"
        self.setFormatter(logging.Formatter(form, datefmt="%m/%d %H:%M:%S"))

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def show_messages(rank: int = 0) -> Console:
    """
    Let the process show its messages; may be called again.

    Args:
        rank: of the process. Only the main process, 0, prints; the others print their errors.
    """
    root = logging.getLogger()
    console = next((h for h in root.handlers if isinstance(h, Console)), None)
    if console is None:
        console = Console()
        root.addHandler(console)
    console.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    for name in (PACKAGE, "detectron2", "fvcore"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    torch = logging.getLogger("torch")
    torch.handlers.clear()  # a terminal's
    torch.propagate = True
    logging.captureWarnings(True)
    return console


def write_log(folder: str | os.PathLike, rank: int = 0) -> None:
    """
    Append everything that the process logs to ``log.txt`` in a folder, or ``log.txt.rank1`` for
    its rank, from now on and instead of the log of another folder.

    Raises:
        OSError: the file cannot be written.
    """
    file = _LogFile(Path(folder) / (f"{LOG_FILE}.rank{rank}" if rank else LOG_FILE))
    root = logging.getLogger()
    for former in [h for h in root.handlers if isinstance(h, _LogFile)]:
        root.removeHandler(former)
        former.close()
    root.addHandler(file)
