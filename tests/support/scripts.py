"""The programs of the repository, without the seconds that a new process needs for PyTorch."""

import importlib.util
import runpy
import sys
from types import ModuleType

import pytest

from support.tiny_runs import ROOT


def load_script(path: str) -> ModuleType:
    """
    Return a script in tools/ or datasets/, which are not packages, as a module.

    Args:
        path: path relative to the repository, such as "datasets/generate_scenes.py".
    """
    specification = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def run_script(path: str, *arguments: object) -> int:
    """
    Run ``python path arguments`` in this process.

    Returns:
        exit status
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *map(str, arguments)])
        try:
            runpy.run_path(str(ROOT / path), run_name="__main__")
        except SystemExit as end:
            return end.code or 0
    return 0
