"""One training at a time in a folder: claims, whose holders live or are dead."""

import errno
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from ocr_panoptic.engine import run_claim
from support.forked import run_forked


@pytest.fixture(autouse=True)
def released(tmp_path):
    yield
    run_claim.release(tmp_path)


def holder(folder: Path) -> dict:
    return json.loads((folder / run_claim.FILE).read_text())


@pytest.mark.slow
def test_a_claim_ends_with_its_process(tmp_path):
    """However it ends: what it wrote into the file does not matter then."""
    program = "import sys, os; from ocr_panoptic.engine.run_claim import claim; claim(sys.argv[1])"
    (tmp_path / "claim.py").write_text(f"{program}; os._exit(1)")
    run_forked([sys.executable, tmp_path / "claim.py", tmp_path], tmp_path / "printed.txt")
    assert holder(tmp_path)["host"] == socket.gethostname()
    run_claim.claim(tmp_path)
    run_claim.claim(tmp_path)  # which is this process's own
    assert holder(tmp_path)["pid"] == os.getpid()
    run_claim.release(tmp_path)
    assert not (tmp_path / run_claim.FILE).exists()


def cannot_lock(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize(
    "host, locks", [("elsewhere", True), ("elsewhere", False), (socket.gethostname(), False)]
)
@pytest.mark.parametrize("state", ["lives", "is dead", "ends meanwhile"])
def test_a_claim_is_watched_for_signs_of_life(tmp_path, monkeypatch, host, locks, state):
    """Claims of another machine are watched, and all where files cannot be locked."""
    path, watched = tmp_path / run_claim.FILE, []
    path.write_text(json.dumps({"host": host, "pid": 7, "begun": "today"}))

    def sleep(seconds: float) -> None:
        assert seconds > 4 * run_claim.BEAT
        watched.append(path)
        if state == "lives":
            os.utime(path, (1, 1))
        elif state == "ends meanwhile":
            path.unlink()

    monkeypatch.setattr(run_claim.time, "sleep", sleep)
    if not locks:
        monkeypatch.setattr(fcntl, "lockf", cannot_lock)
    if state == "lives":
        with pytest.raises(ValueError, match=f"process 7 on {host}.*remove {path}"):
            run_claim.claim(tmp_path)
        assert holder(tmp_path)["pid"] == 7
    else:
        run_claim.claim(tmp_path)
        assert holder(tmp_path)["pid"] == os.getpid()
        run_claim.release(tmp_path)
        assert not path.exists() and not run_claim._is_touched(path)
    assert watched == [path]


def test_a_former_claim_of_this_process_is_not_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(run_claim.time, "sleep", lambda _: pytest.fail("watched"))
    monkeypatch.setattr(fcntl, "lockf", cannot_lock)
    content = {"host": socket.gethostname(), "pid": os.getpid()}
    (tmp_path / run_claim.FILE).write_text(json.dumps(content))
    run_claim.claim(tmp_path)
    assert "begun" in holder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"[1]", b"5", b"\xff\xfe", b"[" * 9000, b'{"pid": [1'],
    ids=["list", "number", "bytes", "deep", "unfinished"],
)
def test_a_claim_that_says_nothing_is_taken(tmp_path, content):
    (tmp_path / run_claim.FILE).write_bytes(content)
    run_claim.claim(tmp_path)
    assert holder(tmp_path)["pid"] == os.getpid()


def test_a_claim_shows_life(tmp_path, monkeypatch):
    monkeypatch.setattr(run_claim, "BEAT", 0.01)
    path = tmp_path / run_claim.FILE
    run_claim.claim(tmp_path)
    os.utime(path, (1, 1))
    deadline = time.monotonic() + 10
    while path.stat().st_mtime == 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.stat().st_mtime > 1
