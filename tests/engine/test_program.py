"""A user's mistake ends with its message; an error of the program with its traceback."""

import pytest
from detectron2.engine import TrainerBase

from ocr_panoptic.engine import load_config, run_program


def test_a_mistake_is_a_message(caplog):
    with pytest.raises(SystemExit) as end:
        run_program(load_config, "nowhere.yaml", [])
    assert end.value.code == 1
    assert caplog.messages == ["--config-file nowhere.yaml does not exist"]
    assert caplog.records[0].exc_info is None


def test_another_error_keeps_its_traceback():
    with pytest.raises(ValueError, match="invalid literal"):
        run_program(lambda: int("x"))


class Failing(TrainerBase):
    def run_step(self) -> None:
        load_config("nowhere.yaml", [])


def test_the_training_loop_keeps_its_traceback():
    with pytest.raises(FileNotFoundError):
        run_program(Failing().train, 0, 1)


def test_the_result_comes_back():
    assert run_program(max, 2, 3) == 3
