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
def test_a_program_in_a_folder_imports_from_its_checkout(path):
    line = "sys.path.insert(0, str(Path(__file__).resolve().parents[1]))"
    assert line in (ROOT / path).read_text()


@pytest.mark.slow
def test_a_program_runs_the_package_of_its_checkout(tmp_path):
    """
    It does not run another checkout's package, even if the environment has it.

    It shows no warnings of other packages.
    """
    (tmp_path / "ocr_panoptic").mkdir()
    (tmp_path / "ocr_panoptic/__init__.py").write_text("raise SystemExit('that of another')")
    program = [sys.executable, ROOT / "studies/train.py", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert not done.returncode and "usage: " in done.stdout, done.stderr
    assert "Warning" not in done.stderr


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import ocr_panoptic
try:
    ocr_panoptic.load
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "package, fix",
    [("torch", "pip install torch torchvision"), ("detectron2", "make install PYTHON=python")],
)
def test_a_missing_package_is_answered_with_its_installation(package, fix):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.startswith(f"{package} is not installed here: {fix}"), done.stderr
