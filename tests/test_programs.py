"""Every program runs as one, and says how it is used."""

import subprocess
import sys

import pytest

from support.scripts import run_script
from support.tiny_runs import ROOT

FOLDERS = (".", "benchmarks", "datasets", "tools")
PROGRAMS = [p.relative_to(ROOT) for folder in FOLDERS for p in sorted((ROOT / folder).glob("*.py"))]


@pytest.mark.parametrize("path", PROGRAMS, ids=str)
def test_help(path, capsys):
    assert run_script(str(path), "--help") == 0
    assert f"usage: {path.name} [-h]" in capsys.readouterr().out


def test_a_program_shows_no_warnings_of_others(tmp_path):
    flags = ["--output", tmp_path, "--train", "1", "--val", "1", "--size", "64"]
    program = [sys.executable, ROOT / "datasets/generate_scenes.py", *flags]
    done = subprocess.run(program, capture_output=True, text=True)
    assert not done.returncode and "Warning" not in done.stderr, done.stderr
