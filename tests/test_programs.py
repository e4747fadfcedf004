"""Every program runs as a script and prints its usage."""

import json
import os
import runpy
import subprocess
import sys

import pytest

from support.tiny_runs import ROOT

FOLDERS = (".", "benchmarks", "datasets", "tools")
PROGRAMS = [p.relative_to(ROOT) for folder in FOLDERS for p in sorted((ROOT / folder).glob("*.py"))]
PROGRAMS = [p for p in PROGRAMS if p.name != "setup.py"]  # setuptools runs it


@pytest.mark.parametrize("path", PROGRAMS, ids=str)
def test_help(path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert f"usage: {path.name} [-h]" in capsys.readouterr().out


def test_images_inside_labelmes_files_are_written_beside_them(tmp_path, monkeypatch):
    content = {"imagePath": "..\\photos\\a.jpg", "imageData": "aGVsbG8="}
    for name, changed in (("a", {}), ("b", {"imageData": None, "imagePath": "b.jpg"})):
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, **changed}))
    monkeypatch.setattr(sys, "argv", ["labelme_images.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "tools/labelme_images.py"), run_name="__main__")
    assert (tmp_path / "a.jpg").read_bytes() == b"hello" and not (tmp_path / "b.jpg").exists()


def test_a_program_runs_the_package_of_its_checkout(tmp_path):
    """It does not run another checkout's package, even if the environment has it."""
    (tmp_path / "ocr_panoptic.py").write_text("raise SystemExit('that of another')")
    command = [sys.executable, ROOT / "tools/keys_page.py", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert not done.returncode and "usage: " in done.stdout, done.stderr


def test_a_missing_package_is_answered_with_its_installation(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    command = [sys.executable, "-c", "import ocr_panoptic; ocr_panoptic.load"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert "torch is not installed. Install it: pip install torch torchvision" in done.stderr
