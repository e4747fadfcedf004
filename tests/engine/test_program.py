"""A user's mistake ends with its message; an error of the program with its traceback."""

import ast
import errno
import os
import sys
from pathlib import Path

import pytest
import torch
from detectron2.engine import TrainerBase

import ocr_panoptic
from ocr_panoptic.engine import load_config, run_program
from ocr_panoptic.engine.resume import position_after
from ocr_panoptic.errors import is_user_error
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.layers.ocr import gather_regions
from prepare_mat_labels import MAT_RELEASES, prepare_mat_release


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "function, arguments, status, start",
    [
        (
            load_config,
            ("nowhere.yaml", []),
            1,
            "--config-file nowhere.yaml does not exist. Name a f",
        ),
        (write_text, (Path("file/a.txt"), ""), 1, "[Errno 17] File exists: 'file'"),
        (interrupted, (), 130, "Interrupted"),
    ],
    ids=["mistake", "system", "Ctrl-C"],
)
def test_a_mistake_is_a_message(tmp_path, monkeypatch, caplog, function, arguments, status, start):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        run_program(function, *arguments)
    assert end.value.code == status
    (record,) = caplog.records
    assert record.message.startswith(start) and record.exc_info is None
    assert "\n" not in record.message


def test_the_end_of_another_process_is_a_message():
    assert is_user_error(ChildProcessError("plain, seed 0 failed with exit code 1; see log.txt"))
    with pytest.raises(ChildProcessError) as none:
        os.waitpid(os.getpid(), 0)
    assert not is_user_error(none.value), "a defect"


@pytest.mark.parametrize(("number", "is_said"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_full_disk_is_a_message(number, is_said):
    """The system tells it without a file where something is written, unlike other failures."""
    error = OSError(number, os.strerror(number))
    assert is_user_error(error) == is_said


def test_what_is_not_installed_is_a_message(tmp_path, caplog, monkeypatch):
    for name in ("scipy", "scipy.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit):
        run_program(prepare_mat_release, MAT_RELEASES["pascal_context"], tmp_path)
    assert "pip install scipy" in caplog.text


def from_elsewhere() -> None:
    raise ValueError("x")


def accidental_in_the_package() -> None:
    load_config(None, 5)  # TypeError: 5 has no length


def accidental_value_error_in_the_package() -> None:
    position_after(load_config("", []), {"iteration": 1, "config": "text"})


def error_of_pytorch() -> None:
    torch.zeros(2).view(3)


DEFECTS = from_elsewhere, accidental_in_the_package, accidental_value_error_in_the_package


@pytest.mark.parametrize("function", [*DEFECTS, error_of_pytorch])
def test_a_defect_has_its_traceback_and_is_called_one(function, caplog):
    with pytest.raises(SystemExit) as end:
        run_program(function)
    assert end.value.code == 1
    (message,) = caplog.messages
    first, *_, last = message.splitlines()
    assert first.startswith("Traceback") and function.__name__ in message
    assert "it is a defect of ocr_panoptic" in last


@pytest.mark.slow
def test_the_package_raises_user_errors():
    """Errors of the package are told in a line, but where only the package itself can be wrong."""
    package = Path(ocr_panoptic.__file__).parent
    plain = {
        file.name
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("ValueError", "OSError")
    }
    # Shapes of tensors; the file that is copied away and stands alone.
    assert plain == {"ocr.py", "run_onnx.py"}


@pytest.mark.parametrize(
    "step, message",
    [
        (lambda: load_config("nowhere.yaml", []), "--config-file nowhere.yaml does not exist"),
        (lambda: gather_regions(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 4, 4)), "a defect of"),
    ],
)
def test_in_the_training_loop_the_models_own_checks_are_defects(caplog, step, message):
    """Data, disk and divergence are the user's there, too."""
    trainer = TrainerBase()
    trainer.run_step = step
    with pytest.raises(SystemExit):
        run_program(trainer.train, 0, 1)
    assert message in caplog.messages[-1]
    assert ("defect" in caplog.messages[-1]) == ("defect" in message)


def test_the_result_comes_back():
    assert run_program(max, 2, 3) == 3
