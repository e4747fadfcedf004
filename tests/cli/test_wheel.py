"""The package as people install it: as a wheel, used in an empty folder without the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_runs import ROOT, TINY, TINY_OCR, images_of

CONFIG = "quick_schedules/semantic_ocr_R_18_scenes"
NEEDED = (
    "ocr_panoptic",
    "configs",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "train_net.py",
)
# All calls share one process, because the imports take longest.
USE = """
import sys
import ocr_panoptic
from ocr_panoptic.cli import call
site, image, data, *train = sys.argv[1:]
assert ocr_panoptic.__file__.startswith(site), ocr_panoptic.__file__
call("train", train)
ocr_panoptic.load("run").predict(image).save("saved")
assert ocr_panoptic.export.__name__ == "export"  # and no module
assert 'crate' in str(ocr_panoptic.check(data))
"""


def files_of(folder: Path) -> set[Path]:
    files = {p.relative_to(folder) for p in (folder / "ocr_panoptic").rglob("*") if p.is_file()}
    return {p for p in files if p.suffix != ".pyc"}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    source, site = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name in NEEDED:
        path = ROOT / name
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / name, ignore=ignored)
        else:
            shutil.copy(path, source)
    (source / "ocr_panoptic/cli/train_net.py").write_text(
        "../../train_net.py"
    )  # as from a zip file
    install = ["install", "--no-deps", "--no-build-isolation", "--no-compile", "--target", site]
    run(source, sys.executable, "-m", "pip", "--quiet", *install, source)  # builds a wheel
    assert files_of(site) >= files_of(source), "pages and scripts, too"
    shutil.rmtree(source / "ocr_panoptic")
    return site


def run(folder: Path, *words: object, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pip"), reason="needs pip")
def test_from_an_empty_folder(site, tiny_root, tmp_path):
    data, (image, *_) = tiny_root / "tiny/tiny_sem.yaml", images_of(tiny_root)
    environment = {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    program = site / "bin/ocr-panoptic"
    listed = run(tmp_path, sys.executable, program, "configs", **environment)
    assert CONFIG in listed.splitlines() and len(listed.splitlines()) > 80
    train = ["--config-file", CONFIG, "--data", data, *TINY, *TINY_OCR, "OUTPUT_DIR", "run"]
    run(tmp_path, sys.executable, "-c", USE, site, image, data, *train, **environment)
    assert (tmp_path / "run/inference/tiny_sem_val/metrics.json").is_file()
    assert (tmp_path / "saved/overlays").is_dir()
