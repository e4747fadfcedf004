"""The package as people install it: a wheel, without the checkout, from an empty folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.tiny_runs import ROOT, TINY, TINY_OCR

CONFIG = "quick_schedules/panoptic_fpn_ocr_R_18_scenes"
NEEDED = ("ocr_panoptic", "configs", "pyproject.toml", "README.md", "LICENSE")
USE = """
import ocr_panoptic
assert ocr_panoptic.__file__.startswith({site!r}), ocr_panoptic.__file__
(image, *_) = sorted(__import__("pathlib").Path({images!r}).iterdir())
model = ocr_panoptic.load("run")
result = model.predict(image)
result.save("saved")
path = ocr_panoptic.export("run", output="model.onnx")
assert ocr_panoptic.export.__name__ == "export"  # and no module
from ocr_panoptic.prediction.onnx.run_onnx import Model
assert (Model(str(path))(result.image)["labels"] == result.labels).mean() > 0.99
assert 'crate' in str(ocr_panoptic.check({data!r}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with what the wheel installs."""
    source, site = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name in NEEDED:
        path = ROOT / name
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(path, source)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", source / "dist", source]
    run(source, sys.executable, "-m", "pip", "--quiet", *build)
    (wheel,) = (source / "dist").glob("*.whl")
    shutil.rmtree(source / "ocr_panoptic")
    run(
        source,
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "install",
        "--no-deps",
        "--target",
        site,
        wheel,
    )
    return site


def run(folder: Path, *words: object, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pip"), reason="needs pip")
def test_from_an_empty_folder(site, tiny_root, tmp_path):
    data = tiny_root / "tiny/tiny.yaml"
    environment = {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    program = site / "bin/ocr-panoptic"
    listed = run(tmp_path, sys.executable, program, "configs", **environment)
    assert CONFIG in listed.splitlines() and len(listed.splitlines()) > 150
    torchrun = Path(sysconfig.get_path("scripts")) / "torchrun"
    train = [
        "-m",
        "ocr_panoptic",
        "train",
        "--config-file",
        CONFIG,
        "--data",
        data,
        *TINY,
        *TINY_OCR,
    ]
    train += ["OUTPUT_DIR", "run"]
    run(tmp_path, torchrun, "--nproc-per-node", "2", *train, **environment)
    assert (tmp_path / "run/inference/tiny_val/metrics.json").is_file()
    images = tiny_root / "tiny/raw/val/images"
    predict = ["predict", "--config-file", "run", "--input", images, "--output", "predicted"]
    run(tmp_path, sys.executable, program, *predict, "--overlays", **environment)
    use = USE.format(site=str(site), images=str(images), data=str(data))
    run(tmp_path, sys.executable, "-c", use, **environment)
    assert (tmp_path / "model.onnx").is_file()
    (saved,) = (tmp_path / "saved/overlays").iterdir()
    assert saved.read_bytes() == (tmp_path / "predicted/overlays" / saved.name).read_bytes()
