"""Order of imports: folders import only lower folders, and the package never the laboratory."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from support.tiny_runs import ROOT

PACKAGE = ROOT / "ocr_panoptic"


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imported(file: Path) -> set[str]:
    """Return the dotted names of the modules that a file imports."""
    package, names = file.relative_to(ROOT).parts, set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            own = package[: len(package) - node.level] if node.level else ()
            base = ".".join([*own, *filter(None, [node.module])])
            names |= {f"{base}.{name.name}" for name in node.names}
    return names


@pytest.mark.slow
def test_no_file_of_the_package_imports_the_laboratory():
    files = [*ROOT.glob("*.py")]
    for folder in ("ocr_panoptic", "datasets", "tools"):
        files += (ROOT / folder).rglob("*.py")
    assert len(files) > 100
    for file in files:
        assert not {"studies", "benchmarks"} & {n.partition(".")[0] for n in imported(file)}, file


@pytest.mark.slow
def test_imports_run_downwards():
    """A folder imports only folders of lower rows in docs/architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text().partition("config.py, metrics.py")[0]
    lines = [
        line.split("   ")[0]
        for line in re.findall(r"^    ([a-z]+/.*|ocr_panoptic/cli/.*)", page, re.M)
    ]
    rows = [[name.split("/")[-2] for name in re.findall(r"[\w/]+/(?= |$)", line)] for line in lines]
    floor = {name: -number for number, row in enumerate(rows) for name in row}
    assert {"cli", "engine", "layers", "formats"} < floor.keys() and len(rows) == 7
    for file in PACKAGE.rglob("*.py"):
        own = file.relative_to(PACKAGE).parts[0]
        for name in imported(file):
            other = f"{name}..".split(".")[1]
            if name.startswith("ocr_panoptic.") and own in floor and own != other:
                assert floor.get(other, -9) < floor[own], f"{file} imports {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "room, wings",
    [
        ("data", {"panoptic", "semantic"}),
        (
            "workbench",
            {"importing", "predicting", "exporting", "looking", "comparing", "refining"},
        ),
    ],
)
def test_wings_do_not_import_each_other(room, wings):
    files = [*(PACKAGE / room).glob("*/*.py")]
    assert {file.parent.name for file in files} - {"published"} == wings
    for file in files:
        for name in imported(file) if file.parent.name in wings else ():
            where, wing = f"{name}....".split(".")[1:3]
            others = wings - {file.parent.name}
            assert where != room or wing not in others, f"{file} imports {name}"


@pytest.mark.slow
def test_public_names_are_unique():
    """
    No two modules define the same public name.

    Exceptions are the functions that each command has, those that the check of each kind of data
    has, and the separate file run_onnx.py.
    """
    owners = defaultdict(list)
    for file in PACKAGE.rglob("*.py"):
        for node in parsed(file).body if file.name != "run_onnx.py" else ():
            names = [ast.unparse(target) for target in getattr(node, "targets", ())]
            names = [name for name in names if re.fullmatch("[A-Z][a-z]+.*", name)]
            for name in [*names, getattr(node, "name", "_")]:
                owners[name].append(str(file))
    shared = {name for name, files in owners.items() if len(files) > 1 and name[0] != "_"}
    checks = {"general_faults", "checker", "warnings"}
    assert shared == {"argument_parser", "run", *checks}, {name: owners[name] for name in shared}
