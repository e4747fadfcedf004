"""The terminal, and ``log.txt``: what a program shows and what it keeps.

The terminal has the messages of this package, from INFO on, and what Detectron2, fvcore and
Python's ``warnings`` warn of, but for what a user can do nothing about; ``log.txt`` has everything.
"""

import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from termcolor import colored
from tqdm import tqdm

from .errors import PACKAGE
from .standard_output import printable

LOG_FILE = "log.txt"
# Of Detectron2, where no progress bar shows the same.
PROGRESS = ("detectron2.utils.events", "detectron2.evaluation.evaluator")
LAYOUT = "\n\t"  # of a message, not escaped
THEIRS = ("detectron2", "fvcore")
TRAINING_LOOP = "detectron2.engine.train_loop"
PYTHON = "py.warnings"  # what logging.captureWarnings calls it
_PYTHON_WARNING = re.compile(r".*?:\d+: (\w+): (.*)")  # PATH:LINE: CATEGORY: MESSAGE
# Warnings that are not for users: of whole loggers, and by their beginnings.
QUIET = (
    "fvcore.common.checkpoint",  # the start of a run has a table of what is not filled
    "detectron2.checkpoint.c2_model_loading",
    "fvcore.nn.jit_analysis",
)
NOISE = (
    "Category ids in annotations are not in [1",  # Detectron2 maps them
    "The given NumPy array is not writable",  # Detectron2's masks, which nobody writes to
    "Detected call of `lr_scheduler.step()` before",  # where the first loss scale is too large
    "Grad strides do not match bucket view strides",
)
# So many lines after a warning it is out of sight, and repeated at the end.
OUT_OF_SIGHT = 10


def has_terminal() -> bool:
    """Return whether somebody sees a progress bar."""
    return sys.stderr is not None and sys.stderr.isatty()


class Console(logging.Handler):
    """
    Prints the messages of this package, others' warnings, Detectron2's errors, and its lines of
    progress where there is no bar: warnings, each once, and errors on stderr, others on stdout.
    """

    def __init__(self):
        super().__init__(logging.INFO)
        self.addFilter(self._is_shown)
        self._lines = 0
        self._warnings: dict[str, int] = {}  # and the number of lines before

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = printable(self.format(record), keep=LAYOUT)
            if record.levelno >= logging.ERROR:
                text = f"{colored('ERROR', 'red')}: {text}"
            elif record.levelno >= logging.WARNING:
                text = _python_message(text) if record.name == PYTHON else text
                text = f"{colored('WARNING', 'yellow')}: {text.strip()}"
                if text in self._warnings:
                    return
                self._warnings[text] = self._lines
            self._print(text, to_stderr=record.levelno >= logging.WARNING)
        except Exception:
            self.handleError(record)

    def repeat_warnings(self) -> None:
        """Print the warnings that may be out of sight, each once."""
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
        if record.levelno >= logging.WARNING and (origin in THEIRS or record.name == PYTHON):
            return record.name not in QUIET and _is_for_users(record.getMessage())
        return record.name in PROGRESS and not has_terminal()


def _is_for_users(warning: str) -> bool:
    found = _PYTHON_WARNING.match(warning)
    category, message = found.groups() if found else ("", warning)
    # PendingDeprecationWarning and NumPy's end so, too.
    return not category.endswith(("DeprecationWarning", "FutureWarning")) and not (
        message.strip().startswith(NOISE)
    )


def _python_message(warning: str) -> str:
    """Return the message of a warning without its place, which log.txt has."""
    found = _PYTHON_WARNING.match(warning)
    return found[2] if found else warning


class _LogFile(logging.FileHandler):
    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        form = "[%(asctime)s] %(name)s %(levelname)s: %(message)s"
        self.setFormatter(logging.Formatter(form, datefmt="%m/%d %H:%M:%S"))

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk ends the log; what else cannot be written ends the program."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.getLogger().removeHandler(self)
        with suppress(OSError):
            self.close()
        logging.getLogger(__name__).warning(
            "%s ends here (%s)", printable(self.baseFilename), error.strerror
        )

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep=LAYOUT)


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
    for name in (PACKAGE, *THEIRS):
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
