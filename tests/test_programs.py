"""Every program runs as one, and says how it is used."""

import pytest
from scripts import run_script
from tiny_runs import ROOT

FOLDERS = (".", "benchmarks", "datasets", "tools")
PROGRAMS = [p.relative_to(ROOT) for folder in FOLDERS for p in sorted((ROOT / folder).glob("*.py"))]


@pytest.mark.parametrize("path", PROGRAMS, ids=str)
def test_help(path, capsys):
    assert run_script(str(path), "--help") == 0
    assert f"usage: {path.name} [-h]" in capsys.readouterr().out
