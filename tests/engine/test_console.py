"""The messages on the terminal, and in log.txt."""

import logging
import warnings

import pytest

from ocr_panoptic import waiting
from ocr_panoptic.console import OUT_OF_SIGHT, show_messages, write_log
from ocr_panoptic.engine import run_program

ours, theirs = logging.getLogger("ocr_panoptic.data.x"), logging.getLogger("detectron2.data.y")


@pytest.fixture
def no_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


def speak() -> None:
    ours.debug("a detail")
    ours.info("a summary")
    ours.warning("a warning")
    theirs.info("a detail of Detectron2")
    theirs.warning("a warning of Detectron2")
    theirs.error("an error of Detectron2")
    logging.getLogger("detectron2.utils.events").info("iter: 1")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
            warnings.warn("old", category, stacklevel=1)
        for _ in range(2):
            warnings.warn("cumsum has no deterministic implementation", stacklevel=1)
        warnings.warn("The given NumPy array is not writable, and", stacklevel=1)
    theirs.warning("\nCategory ids in annotations are not in [1, #categories]! ...\n")
    logging.getLogger("fvcore.common.checkpoint").warning("Skip loading parameter")
    logging.getLogger("torch.utils.cpp_extension").warning("No CUDA runtime is found")


def test_the_terminal_has_what_matters_and_the_file_all(tmp_path, capsys, no_colours):
    show_messages()
    write_log(tmp_path)
    speak()
    out, err = capsys.readouterr()
    assert out.splitlines() == ["a summary", "iter: 1"]
    assert err.splitlines() == [
        "WARNING: a warning",
        "WARNING: a warning of Detectron2",
        "ERROR: an error of Detectron2",
        "WARNING: cumsum has no deterministic implementation",
    ]
    log = (tmp_path / "log.txt").read_text()
    said = ["a detail\n", "a summary\n", "a warning\n", "of Detectron2\n", "iter: 1", "Deprecation"]
    said += ["test_console.py:", "not writable", "Category ids", "Skip loading", "No CUDA"]
    assert all(text in log for text in said)
    assert "ocr_panoptic.data.x WARNING: a warning\n" in log


def test_only_the_main_process_speaks(tmp_path, capsys, no_colours):
    show_messages(rank=1)
    write_log(tmp_path, rank=1)
    speak()
    ours.error("an error")
    out, err = capsys.readouterr()
    assert out == "" and "warning" not in err and "ERROR: an error\n" in err
    assert "a summary" in (tmp_path / "log.txt.rank1").read_text()


def test_a_log_goes_on_and_another_folder_has_its_own(tmp_path):
    show_messages()
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        write_log(tmp_path / folder)
        ours.info("once")
    assert (tmp_path / "a/log.txt").read_text().count("once") == 2
    assert (tmp_path / "b/log.txt").read_text().count("once") == 1


def program(lines: int, error: Exception | None) -> None:
    ours.warning("early")
    ours.warning("early")
    for i in range(lines):
        ours.info("line %d", i)
    ours.warning("late")
    if error:
        raise error


def test_warnings_out_of_sight_are_repeated_before_the_error(capsys, no_colours):
    with pytest.raises(SystemExit):
        run_program(program, OUT_OF_SIGHT + 1, KeyboardInterrupt())
    *before, header, repeated, last = capsys.readouterr().err.splitlines()
    assert before == ["WARNING: early", "WARNING: late"]
    assert header == "Warnings of this run, again:"
    assert (repeated, last) == ("WARNING: early", "ERROR: Interrupted")
    run_program(program, 3, None)
    assert "again" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a/\x1b]0;title\x07\x1b[31mX", r"a/\x1b]0;title\x07\x1b[31mX"),
        ("\0\r\x7f\x9b", r"\x00\r\x7f\x9b"),
        ("\u202egnp.exe", r"\u202egnp.exe"),  # shown from right to left
        ("\udc80", r"\udc80"),  # a byte of a file name that is no UTF-8
        ("größe\t語\n ok", "größe\t語\n ok"),
    ],
)
def test_nothing_that_a_terminal_would_obey(text, shown, tmp_path, capsys, no_colours):
    show_messages()
    write_log(tmp_path)
    ours.info("%s", text)
    assert capsys.readouterr().out == f"{shown}\n"
    assert (tmp_path / "log.txt").read_text().endswith(f"{shown}\n")


class Terminal:
    def __init__(self, is_one: bool):
        self.isatty = lambda: is_one
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("patience, is_terminal, says", [(0, 1, 1), (0, 0, 0), (60, 1, 0)])
def test_imports_that_take_long_say_so(monkeypatch, patience, is_terminal, says):
    monkeypatch.setattr(waiting, "PATIENCE", patience)
    monkeypatch.setattr("sys.stderr", terminal := Terminal(bool(is_terminal)))
    with waiting.importing("PyTorch"):
        threads = [
            t for t in waiting.threading.enumerate() if isinstance(t, waiting.threading.Timer)
        ]
        if patience == 0:
            for timer in threads:
                timer.join()
    assert terminal.text == ("Importing PyTorch ...\n" if says else "")


def test_ctrl_c_while_importing():
    with pytest.raises(SystemExit) as end, waiting.importing("PyTorch"):
        raise KeyboardInterrupt
    assert end.value.code == 130
