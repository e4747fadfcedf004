"""A user's mistake ends with its message; an error of the program with its traceback."""

import sys

import pytest
from detectron2.engine import TrainerBase

from ocr_panoptic.data import MAT_RELEASES, prepare_mat_release
from ocr_panoptic.engine import load_config, run_program
from ocr_panoptic.files import write_text


def test_a_mistake_is_a_message(caplog):
    with pytest.raises(SystemExit) as end:
        run_program(load_config, "nowhere.yaml", [])
    assert end.value.code == 1
    assert caplog.messages == ["--config-file nowhere.yaml does not exist"]
    assert caplog.records[0].exc_info is None


def test_the_systems_word_on_a_file_is_a_message(tmp_path, caplog):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        run_program(write_text, tmp_path / "file/a.txt", "")
    assert end.value.code == 1
    assert caplog.messages == [f"[Errno 17] File exists: '{tmp_path}/file'"]


def test_what_is_not_installed_is_a_message(tmp_path, caplog, monkeypatch):
    for name in ("scipy", "scipy.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit):
        run_program(prepare_mat_release, MAT_RELEASES["pascal_context"], tmp_path)
    assert "pip install scipy" in caplog.text


def elsewhere(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), ModuleNotFoundError("x")])
def test_another_error_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        run_program(elsewhere, error)


class Failing(TrainerBase):
    def run_step(self) -> None:
        load_config("nowhere.yaml", [])


def test_the_training_loop_keeps_its_traceback():
    with pytest.raises(FileNotFoundError):
        run_program(Failing().train, 0, 1)


def test_the_result_comes_back():
    assert run_program(max, 2, 3) == 3
