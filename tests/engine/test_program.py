"""A user's mistake ends with its message; an error of the program with its traceback."""

import ast
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from detectron2.engine import TrainerBase
from torch.utils.data import DataLoader

import ocr_panoptic
from ocr_panoptic.data.published.mat_labels import MAT_RELEASES, prepare_mat_release
from ocr_panoptic.data.training_stream import Telling, TrainingStream
from ocr_panoptic.engine import load_config, run_program
from ocr_panoptic.engine.progress import WatchedLoader
from ocr_panoptic.engine.resume import position_after
from ocr_panoptic.errors import is_user_error
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.formats.labels import read_labels
from ocr_panoptic.layers.ocr import gather_regions


def test_a_mistake_is_a_message(caplog):
    with pytest.raises(SystemExit) as end:
        run_program(load_config, "nowhere.yaml", [])
    assert end.value.code == 1
    (message,) = caplog.messages
    assert message.startswith("--config-file nowhere.yaml does not exist. Name a file, the folder")
    assert caplog.records[0].exc_info is None


def test_the_systems_word_on_a_file_is_a_message(tmp_path, caplog):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        run_program(write_text, tmp_path / "file/a.txt", "")
    assert end.value.code == 1
    assert caplog.messages == [f"[Errno 17] File exists: '{tmp_path}/file'"]


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


@pytest.mark.parametrize(
    "function",
    [
        from_elsewhere,
        accidental_in_the_package,
        accidental_value_error_in_the_package,
        error_of_pytorch,
    ],
)
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
    assert plain == {"ocr.py", "running_gather.py", "run_onnx.py"}


class Failing(TrainerBase):
    def __init__(self, error: Callable[[], None]):
        super().__init__()
        self.error = error

    def run_step(self) -> None:
        self.error()


def test_in_the_training_loop_the_models_own_checks_are_defects(caplog):
    """Data, disk and divergence are the user's there, too."""
    with pytest.raises(SystemExit):
        run_program(Failing(lambda: load_config("nowhere.yaml", [])).train, 0, 1)
    assert caplog.messages[-1].startswith("--config-file nowhere.yaml does not exist")
    caplog.clear()
    with pytest.raises(SystemExit):
        run_program(
            Failing(lambda: gather_regions(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 4, 4))).train,
            0,
            1,
        )
    assert "it is a defect of" in caplog.messages[-1]


def test_ctrl_c_is_one_line(caplog):
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        run_program(interrupted)
    assert end.value.code == 130 and caplog.messages == ["Interrupted"]


def test_the_result_comes_back():
    assert run_program(max, 2, 3) == 3


def test_a_broken_image_in_a_process_that_loads_data(tmp_path, caplog):
    """Told in a line, by the training and by an evaluation, and not as a DataLoader's traceback."""
    (tmp_path / "x.png").write_bytes(b"no image")
    loader = DataLoader(["x.png"], collate_fn=Reading(tmp_path), num_workers=1)
    for consume in (
        lambda: list(WatchedLoader(loader, "evaluate")),
        lambda: next(stream(tmp_path)),
    ):
        caplog.clear()
        with pytest.raises(SystemExit):
            run_program(consume)
        message = caplog.messages[-1]  # after warnings of PyTorch
        assert str(tmp_path / "x.png") in message and "\n" not in message


class Reading:
    """A batch of one image."""

    def __init__(self, folder: Path):
        self.read = Telling(lambda name: read_labels(folder / name, None))

    def __call__(self, names: list[str]) -> list:
        return [self.read(name) for name in names]


def stream(folder: Path) -> Iterator[list]:
    return iter(
        TrainingStream(
            [{"file_name": folder / "x.png"}],
            [0],
            lambda record: read_labels(record["file_name"], None),
            batch_size=1,
            group=False,
            workers=1,
            seed=0,
        )
    )
