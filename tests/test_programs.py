"""Every program runs as a script and prints its usage."""

import os
import subprocess
import sys
from pathlib import Path

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
def test_a_program_in_a_folder_imports_from_its_checkout(path):
    line = "sys.path.insert(0, str(Path(__file__).resolve().parents[1]))"
    assert line in (ROOT / path).read_text()


def run_python(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, with a folder from which it imports before the environment."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)


def test_a_program_runs_the_package_of_its_checkout(tmp_path):
    """It does not run another checkout's package, even if the environment has it."""
    (tmp_path / "ocr_panoptic.py").write_text("raise SystemExit('that of another')")
    done = run_python(tmp_path, "tools/check_run.py", "--help")
    assert not done.returncode and "usage: " in done.stdout, done.stderr


def test_a_missing_package_is_answered_with_its_installation(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    done = run_python(tmp_path, "-c", "import ocr_panoptic; ocr_panoptic.load")
    assert "torch is not installed here: pip install torch torchvision" in done.stderr
