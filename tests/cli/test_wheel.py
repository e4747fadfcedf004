"""The package as people install it: as a wheel, used in an empty folder without the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_runs import ROOT, TINY, TINY_OCR

CONFIG = "quick_schedules/semantic_ocr_R_18_scenes"
NEEDED = ("ocr_panoptic", "configs", "setup.py", "pyproject.toml", "README.md", "LICENSE")
# All calls share one process, because the imports take longest.
USE = """
import sys
import ocr_panoptic
from ocr_panoptic.cli import call
site, images, data, *train = sys.argv[1:]
assert ocr_panoptic.__file__.startswith(site), ocr_panoptic.__file__
call("train", train)
call("predict", ["--config-file", "run", "--input", images, "--output", "predicted", "--overlays"])
call("report", ["--config-file", "run"])
call("view", ["--data", data, "--dataset", "tiny_sem_val", "--output", "data.html"])
(image, *_) = sorted(__import__("pathlib").Path(images).iterdir())
result = ocr_panoptic.load("run").predict(image)
result.save("saved")
assert ocr_panoptic.export.__name__ == "export"  # and no module
files = __import__("importlib.resources").resources.files("ocr_panoptic.workbench.exporting")
assert all((files / name).is_file() for name in ("page.html", "page.js", "run_onnx.py"))
assert 'crate' in str(ocr_panoptic.check(data))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return a folder with the installed wheel."""
    source, site = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name in NEEDED:
        path = ROOT / name
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / name, ignore=ignored)
        else:
            shutil.copy(path, source)
    install = ["install", "--no-deps", "--no-build-isolation", "--no-compile", "--target", site]
    run(source, sys.executable, "-m", "pip", "--quiet", *install, source)  # builds a wheel
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
    data, images = tiny_root / "tiny/tiny_sem.yaml", tiny_root / "tiny/raw/val/images"
    environment = {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    program = site / "bin/ocr-panoptic"
    listed = run(tmp_path, sys.executable, program, "configs", **environment)
    assert CONFIG in listed.splitlines() and len(listed.splitlines()) > 80
    train = ["--config-file", CONFIG, "--data", data, *TINY, *TINY_OCR, "OUTPUT_DIR", "run"]
    run(tmp_path, sys.executable, "-c", USE, site, images, data, *train, **environment)
    assert (tmp_path / "run/inference/tiny_sem_val/metrics.json").is_file()
    assert (tmp_path / "run/index.html").is_file() and (tmp_path / "data.html").is_file()
    (saved,) = (tmp_path / "saved/overlays").iterdir()
    assert saved.read_bytes() == (tmp_path / "predicted/overlays" / saved.name).read_bytes()
