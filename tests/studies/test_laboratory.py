"""Order of imports: folders import only lower folders, and the package never the laboratory."""

import ast
import re
from pathlib import Path

import pytest

from support.tiny_runs import ROOT

PACKAGE = ROOT / "ocr_panoptic"


def imported(file: Path) -> set[str]:
    package, names = file.relative_to(ROOT).parts, set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            own = package[: len(package) - node.level] if node.level else ()
            base = ".".join([*own, *filter(None, [node.module])])
            names |= {f"{base}.{name.name}" for name in node.names}
    return names


@pytest.fixture(scope="module")
def imports() -> dict[Path, set[str]]:
    files = [*ROOT.glob("*.py"), *PACKAGE.rglob("*.py")]
    files += [file for folder in ("datasets", "tools") for file in (ROOT / folder).glob("*.py")]
    return {file.relative_to(ROOT): imported(file) for file in files}


@pytest.mark.slow
def test_no_file_of_the_package_imports_the_laboratory(imports):
    assert len(imports) > 100
    for file, names in imports.items():
        assert not {"studies", "benchmarks"} & {name.partition(".")[0] for name in names}, file


@pytest.mark.slow
def test_imports_run_downwards(imports):
    """
    A folder imports only folders of lower rows in docs/architecture.md.

    Kinds of data do not import each other, and neither do benches of the workbench.
    """
    page = (ROOT / "docs/architecture.md").read_text().partition("errors.py, metrics.py")[0]
    lines = [line.split("   ")[0] for line in re.findall(r"^    ([a-z]+/.*)", page, re.M)]
    rows = [[name.split("/")[-2] for name in re.findall(r"[\w/]+/(?= |$)", line)] for line in lines]
    floor = {name: -number for number, row in enumerate(rows) for name in row}
    assert {"cli", "engine", "layers", "formats"} < floor.keys() and len(rows) == 9
    rooms = {file.parent.name for file in PACKAGE.glob("*/*.py")}
    assert floor.keys() == rooms
    wings = {
        room: {file.parent.name for file in (PACKAGE / room).glob("*/*.py")} - {"published"}
        for room in ("data", "workbench")
    }
    assert all(re.search(rf"\b{name}\b", page) for name in wings["workbench"])
    for file, names in imports.items():
        if file.parts[0] != PACKAGE.name:
            continue
        room, wing, *_ = *file.parts[1:], ""
        for name in names:
            package, other, part, *_ = f"{name}...".split(".")
            if package == PACKAGE.name and room != other and room in floor:
                assert floor.get(other, -9) < floor[room], f"{file} imports {name}"
            elif room == other and {wing, part} <= wings.get(room, set()):
                assert wing == part, f"{file} imports {name}"
