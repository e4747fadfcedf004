"""How a program ends: with a message for a user's mistake, with a traceback for a defect."""

import errno
import logging
import subprocess
import sys

import pytest

from ocr_panoptic.config.files import load_config
from ocr_panoptic.errors import MissingPackageError
from ocr_panoptic.program import log_run, run_program
from support.tiny_runs import ROOT


def interrupted() -> None:
    raise KeyboardInterrupt


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "function, arguments, status, said",
    [
        (load_config, ("nowhere.yaml", []), 1, "The config nowhere.yaml does not exist."),
        (fail, (MissingPackageError("pip install x"),), 1, "ERROR: pip install x\n"),
        (fail, (ModuleNotFoundError("a", name="torch"),), 1, "torch is not installed. Install it:"),
        (fail, (FloatingPointError("loss is NaN"),), 1, "ERROR: loss is NaN\n"),
        (fail, (OSError(errno.ENOSPC, "No space left"),), 1, "No space left"),
        (fail, (PermissionError(errno.EACCES, "Permission denied", "a"),), 1, "ERROR: 'a': Perm"),
        (fail, (ImportError("libx.so: failed to map segment"),), 1, "not enough memory (libx.so"),
        (fail, (RuntimeError("x\nno: can't allocate memory\ny"),), 1, "memory (no: can't allocate"),
        (fail, (RuntimeError("CUDA out of memory. Tried 5"),), 1, "enough memory on the GPU (CUDA"),
        (fail, (RuntimeError("could not create a primitive"),), 1, "memory (could not create a p"),
        (interrupted, (), 130, ""),
    ],
)
def test_a_mistake_gives_a_message(capsys, function, arguments, status, said):
    with pytest.raises(SystemExit) as end:
        run_program(function, *arguments)
    assert end.value.code == status
    printed = capsys.readouterr().err
    assert said in printed and len(printed.splitlines()) == bool(said)


def test_a_defect_raises_an_exception():
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: 1 / 0)
    with pytest.raises(RuntimeError):  # of oneDNN, which lacks no memory here
        run_program(fail, RuntimeError("could not create a primitive descriptor"))
    assert run_program(max, 2, 3) == 3


def test_a_closed_pipe():
    """``| head -1`` ends the program silently."""
    program = "from ocr_panoptic.program import run_program as run; run(print, *range(10**6))"
    command = f"{sys.executable} -c '{program}' | head -c 1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, timeout=120)
    assert (done.stdout, done.stderr) == (b"0", b"")


ours, theirs = logging.getLogger("ocr_panoptic.data.x"), logging.getLogger("detectron2.data.y")


def test_the_terminal_has_the_important_lines_and_the_file_has_all(tmp_path, capsys):
    for folder in ("former", "run"):
        log_run(str(tmp_path / folder), 0)
    ours.debug("a detail")
    ours.info("a summary")
    theirs.warning("a warning of Detectron2")
    printed = capsys.readouterr().out
    assert printed.count("a summary") == 1 and "a detail" not in printed
    assert "a warning of Detectron2" in printed
    log = (tmp_path / "run/log.txt").read_text()
    assert all(text in log for text in ("a detail\n", "a summary\n", "a warning of Detectron2\n"))
    assert (tmp_path / "former/log.txt").read_text() == ""
    logging.getLogger("detectron2.engine.train_loop").error("The end", exc_info=KeyError(5))
    assert capsys.readouterr().out == ""  # the program prints the error
    assert "KeyError: 5" in (tmp_path / "run/log.txt").read_text()


def test_only_the_main_process_prints(tmp_path, capsys):
    log_run(str(tmp_path), 1)
    ours.warning("a warning")
    assert capsys.readouterr().out == ""
    assert "a warning" in (tmp_path / "log.txt.rank1").read_text()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_link_in_place_of_the_log_is_not_followed(tmp_path, rank):
    (tmp_path / "notes.txt").write_text("mine\n")
    link = tmp_path / ("log.txt.rank1" if rank else "log.txt")
    link.symlink_to(tmp_path / "notes.txt")
    log_run(str(tmp_path), rank)
    ours.warning("a warning")
    assert (tmp_path / "notes.txt").read_text() == "mine\n"
    assert "a warning" in link.read_text() and not link.is_symlink()
