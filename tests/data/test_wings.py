"""Panoptic and semantic data do not know each other."""

import ast
from pathlib import Path

import pytest

import ocr_panoptic.data

DATA = Path(ocr_panoptic.data.__file__).parent


@pytest.mark.parametrize("wing, other", [("panoptic", "semantic"), ("semantic", "panoptic")])
def test_neither_imports_the_other(wing, other):
    files = list((DATA / wing).glob("*.py"))
    assert len(files) > 3
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                parts = [*(node.module or "").split("."), *(name.name for name in node.names)]
                assert other not in parts, f"{file}, line {node.lineno}"
                assert node.level < 2, f"{file}, line {node.lineno}: leaves the folder"
