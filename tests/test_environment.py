"""The Makefile's choice of Python, and the scripts that install."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions

import pytest

from support.tiny_runs import ROOT


def dry_run(*args: object, **variables: str) -> str:
    command = ["make", "--dry-run", *map(str, args)]
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make(tmp_path):
    """Only a Python on the command line counts; demo-finetune uses CamVid if it is there."""
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


@pytest.mark.parametrize("start", ["dependencies = [", "export = [", "finetune = ["])
def test_every_dependency_has_a_lower_bound(start):
    """`make test-oldest` installs these versions; without a bound it would install the newest."""
    listed = (ROOT / "pyproject.toml").read_text().partition(f"\n{start}")[2].partition("]")[0]
    names = re.findall(r'"([^"]+)"', listed)
    assert names and all(re.fullmatch(r"[a-z0-9-]+>=[a-z0-9.]+", name) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("minor, status", [(9, 1), (10, 42), (13, 42), (14, 1)])
def test_python_versions_of_the_pinned_packages(tmp_path, minor, status):
    """The interpreter claims a version; its ``-m venv`` ends the script with status 42."""
    python = tmp_path / "python"
    python.write_text(f"""#!/usr/bin/env bash
case "$1" in
    -c) exec {sys.executable} -c "import sys; sys.version_info = 3, {minor}; ${{2#import sys; }}" ;;
    --version) echo "Python 3.{minor}.1" ;;
    *) exit 42 ;;
esac""")
    python.chmod(0o755)
    script = [ROOT / "tools/create_env.sh", tmp_path / "venv", python]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == status and not (tmp_path / "venv").exists()
    assert (f"is Python 3.{minor}.1, but" in done.stderr) == (status == 1)


@pytest.mark.slow
def test_the_wheel_of_detectron2(tmp_path):
    """From a wheel like the published one: no binary, no "tools", and only true requirements."""
    info = "sal_detectron2-0.7.2.dist-info"
    metadata = "Metadata-Version: 2.1\nName: sal-detectron2\nVersion: 0.7.2\n"
    requires = "".join(f"Requires-Dist: {name}\n" for name in ("numpy<2", "black", "yacs>=0.1.8"))
    code = ["detectron2/__init__.py", "detectron2/_C.cpython-310.so", "tools/__init__.py"]
    files = dict.fromkeys(code, "") | {
        f"{info}/METADATA": metadata + requires,
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
    site = tmp_path / "site"
    pip = {"NO_INDEX": "1", "FIND_LINKS": wheel.parent, "NO_DEPS": "1", "TARGET": site}
    environment = os.environ | {f"PIP_{name}": str(value) for name, value in pip.items()}
    subprocess.run([script, sys.executable], env=environment, check=True)
    assert {path.name for path in site.iterdir()} == {"detectron2", info}
    assert not [*site.glob("detectron2/_C*")]
    (installed,) = distributions(path=[str(site)])
    assert installed.requires == ["numpy", "setuptools<82", "yacs>=0.1.8"]
    assert "tools/__init__.py" not in map(str, installed.files)
