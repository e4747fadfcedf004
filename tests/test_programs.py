"""Every program runs as a script and prints its usage."""

import os
import subprocess
import sys

import pytest

from support.scripts import run_script
from support.tiny_runs import ROOT

FOLDERS = (".", "benchmarks", "datasets", "tools")
PROGRAMS = [p.relative_to(ROOT) for folder in FOLDERS for p in sorted((ROOT / folder).glob("*.py"))]
PROGRAMS = [p for p in PROGRAMS if p.name != "setup.py"]  # setuptools runs it


@pytest.mark.parametrize("path", PROGRAMS, ids=str)
def test_help(path, capsys):
    assert run_script(str(path), "--help") == 0
    assert f"usage: {path.name} [-h]" in capsys.readouterr().out


@pytest.mark.parametrize("path", [p for p in PROGRAMS if p.parent.name], ids=str)
def test_a_program_in_a_folder_looks_in_its_checkout_first(path):
    line = "sys.path.insert(0, str(Path(__file__).resolve().parents[1]))"
    assert line in (ROOT / path).read_text()


@pytest.mark.slow
def test_a_program_of_a_checkout_runs_its_package(tmp_path):
    """A program does not run the package of another checkout, which the environment has, and shows
    no warnings of others."""
    (tmp_path / "ocr_panoptic").mkdir()
    (tmp_path / "ocr_panoptic/__init__.py").write_text("raise SystemExit('that of another')")
    program = [sys.executable, ROOT / "studies/train.py", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert not done.returncode and "usage: " in done.stdout, done.stderr
    assert "Warning" not in done.stderr
