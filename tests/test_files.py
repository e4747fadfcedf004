"""Files: one process at a time, folders that cannot be written, characters for a terminal."""

import errno
import fcntl
from contextlib import ExitStack

import pytest

from ocr_panoptic.formats.files import check_output_folder, locked, printable, replacing
from support.other_process import lock_held


def test_locked_by_another_process(tmp_path):
    path = tmp_path / "lock"
    with lock_held(path), pytest.raises(BlockingIOError), locked(path, wait=False):
        pass
    path.write_text("of another one, which has been killed")
    with locked(path, wait=False, note="mine"):
        assert path.read_bytes() == b"mine"
    assert not path.exists()


def test_a_lock_that_is_waited_for(tmp_path, monkeypatch):
    """The file is another one then, of which this process has to be the first."""
    path = tmp_path / "lock"
    real, tries = fcntl.lockf, []

    def lockf(file, how):
        if not tries:
            path.unlink()  # by the process before
        tries.append(file)
        real(file, how)

    monkeypatch.setattr("ocr_panoptic.formats.files.fcntl.lockf", lockf)
    with locked(path, wait=True):
        assert len(tries) == 2 and path.exists()


def test_a_block_that_cannot_be_locked_leaves_the_file_of_another(tmp_path, monkeypatch):
    def lockf(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("ocr_panoptic.formats.files.fcntl.lockf", lockf)
    path = tmp_path / "lock"
    with locked(path, wait=False, note="later"), pytest.raises(BlockingIOError):  # noqa: SIM117
        with locked(path, wait=False, in_use=lambda: True):
            pass
    with ExitStack() as later:
        with locked(path, wait=False, note="former"):
            later.enter_context(locked(path, wait=False, note="later"))
        assert path.read_bytes() == b"later"
    assert not path.exists()


def test_two_temporary_names_differ(tmp_path):
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        assert one != other
        one.touch()
        other.touch()


@pytest.mark.parametrize("name", ["/proc/x", "file", "file/below"])
def test_a_folder_that_cannot_be_written(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^Output .* cannot be written \(.*\)\. Take another\.$"):
        check_output_folder(tmp_path / name, "Output", "Take another.")


def test_printable():
    assert printable("a\x1b\n\t\udc80é\\") == r"a\x1b\n\t\udc80é" + "\\"


def test_a_full_disk_names_the_file(tmp_path):
    with (
        pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"),
        replacing(tmp_path / "a"),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"x")
