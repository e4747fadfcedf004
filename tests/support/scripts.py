"""The programs of the repository, without the seconds that a new process needs for PyTorch."""

import runpy
import sys

import pytest

from support.tiny_runs import ROOT


def run_script(path: str, *arguments: object) -> int:
    """Run ``python path arguments`` in this process, and return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *map(str, arguments)])
        try:
            runpy.run_path(str(ROOT / path), run_name="__main__")
        except SystemExit as end:
            return end.code or 0
    return 0
