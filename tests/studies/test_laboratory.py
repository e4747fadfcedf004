"""The laboratory is used by nothing of the product, and trains by its own program."""

import ast
import subprocess
import sys

import pytest

from studies.run import TRAIN
from support.tiny_runs import ROOT


def test_no_file_of_the_product_imports_it():
    files = [*ROOT.glob("*.py")]
    for folder in ("ocr_panoptic", "datasets", "tools"):
        files += (ROOT / folder).rglob("*.py")
    assert len(files) > 200
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"studies", "benchmarks"} & {n.partition(".")[0] for n in names}, file


@pytest.mark.slow
def test_the_program_that_studies_start():
    words = [sys.executable, TRAIN, "--help"]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0 and "--config-file" in done.stdout, done.stderr
