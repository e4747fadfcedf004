"""The Makefile's choice of Python, and the scripts that install."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def dry_run(*args: str, **variables: str) -> str:
    """Return the commands that make would run, whatever this shell or ``make test`` sets."""
    own = ("MAKE", "MFLAGS", "CAMVID", "CONFIG", "OUTPUT", "SCHEME", "FINETUNE", "VENV", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    make = ["make", "--dry-run", *args]
    return subprocess.run(
        make, cwd=ROOT, env=environment | variables, capture_output=True, text=True
    ).stdout


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make(tmp_path):
    """
    The command line's Python counts, the shell's variable does not.

    demo-finetune uses CamVid if it exists.
    """
    test = dry_run("test", PYTHON="/shell/python")
    assert ".venv/bin/python -m pytest" in test and "/shell/python" not in test
    test = dry_run("test", "PYTHON=/own/python")
    assert "/own/python -m pytest" in test and "create_env" not in test
    finetune = "demo-finetune", "PYTHON=python", f"DETECTRON2_DATASETS={tmp_path}"
    scenes = dry_run(*finetune)
    assert "generate_scenes.py" in scenes and "scenes_sem.yaml" in scenes
    camvid = dry_run(*finetune, "CAMVID=/some/folder")
    assert "prepare_camvid.py /some/folder" in camvid and "camvid.yaml" in camvid
    (tmp_path / "camvid").mkdir()
    (tmp_path / "camvid/camvid.yaml").touch()
    prepared = dry_run(*finetune)
    assert "INPUT.CROP.SIZE '[160, 224]'" in prepared and "prepare_camvid.py" not in prepared
    assert "generate_scenes" not in camvid + prepared


def create_env(folder: Path, python: str, free_mb: int = 7000) -> subprocess.CompletedProcess[str]:
    """Run tools/create_env.sh with ``python`` as interpreter, on a disk with ``free_mb`` MB."""
    for name, body in {"df": f'echo Avail; echo "{free_mb}"', "python": python}.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        [str(ROOT / "tools/create_env.sh"), str(folder / "venv"), str(folder / "python")],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("version, accepted", [("3.9", 0), ("3.10", 1), ("3.13", 1), ("3.14", 0)])
def test_python_versions_of_the_pinned_packages(tmp_path, version, accepted):
    major, minor = version.split(".")
    # An interpreter that claims this version, and whose "-m venv" ends the script.
    python = f"""case "$1" in
    -c) exec {sys.executable} -c \
            "import sys; sys.version_info = ({major}, {minor}); ${{2#import sys; }}" ;;
    --version) echo "Python {version}.1" ;;
    *) exit 42 ;;
esac"""
    done = create_env(tmp_path, python)
    assert done.returncode == (42 if accepted else 1)
    assert not (tmp_path / "venv").exists()
    if not accepted:
        assert f"is Python {version}.1, but the pinned packages are for Python 3.10" in done.stderr


@pytest.mark.parametrize("free_mb, accepted", [(6999, False), (7000, True)])
def test_a_disk_that_is_too_small(tmp_path, free_mb, accepted):
    done = create_env(tmp_path, '[ "$1" = -c ] || exit 42', free_mb)
    assert done.returncode == (42 if accepted else 1)
    assert accepted or "has 6 GB free" in done.stderr


@pytest.mark.slow
def test_the_wheel_of_detectron2(tmp_path):
    """From a wheel like the published one: no binary, no "tools", and only true requirements."""
    info = "sal_detectron2-0.7.2.dist-info"
    files = {
        "detectron2/__init__.py": "",
        "detectron2/_C.cpython-310-x86_64-linux-gnu.so": "",
        "tools/__init__.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: sal-detectron2\nVersion: 0.7.2\n"
        "Requires-Dist: numpy<2\nRequires-Dist: black\nRequires-Dist: yacs>=0.1.8\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp310-cp310-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    for folder in ("published", "tools", "requirements"):
        (tmp_path / folder).mkdir()
    wheel = tmp_path / "published/sal_detectron2-0.7.2-cp310-cp310-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pin = f"sal-detectron2==0.7.2 --hash=sha256:{digest}"
    (tmp_path / "requirements/detectron2.txt").write_text(pin)
    script = shutil.copy(ROOT / "tools/install_detectron2.sh", tmp_path / "tools")
    pip = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_NO_DEPS": "1",
        "PIP_TARGET": str(tmp_path / "site"),
    }
    subprocess.run([script, sys.executable], env=os.environ | pip, check=True)
    assert {path.name for path in (tmp_path / "site").iterdir()} == {"detectron2", info}
    assert not [*(tmp_path / "site/detectron2").glob("_C*")]
    (installed,) = distributions(path=[str(tmp_path / "site")])
    assert installed.requires == ["numpy", "setuptools<82", "yacs>=0.1.8"]
    assert "tools/__init__.py" not in map(str, installed.files)
