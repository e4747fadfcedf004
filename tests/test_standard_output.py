"""Programs whose output nobody reads to its end."""

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
from ocr_panoptic.standard_output import outlive_reader
outlive_reader()
print("first", flush=True)
sys.stdin.read()  # until the reader has gone
for _ in range(100):
    print("more" * 1000, flush=True)
    print("more" * 1000, file=sys.stderr)
Path(sys.argv[1]).touch()
print("last")
"""


def test_a_reader_that_goes(tmp_path):
    """Readers such as ``2>&1 | head -1`` go before the end."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "written")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == b"first\n"
        process.stdout.close()
        process.stdin.close()
        assert process.wait() == 0
    assert (tmp_path / "written").exists()


def test_a_reader_that_stays(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "written")]
    found = subprocess.run(command, input=b"", capture_output=True, check=True)
    lines = found.stdout.split()
    assert (lines[0], len(lines), lines[-1]) == (b"first", 102, b"last")
    assert found.stderr.split() == [b"more" * 1000] * 100
