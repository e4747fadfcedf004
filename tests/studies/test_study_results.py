"""Published results come from published studies, and the documents show them."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocr_panoptic.workbench.comparing.study import read_runs
from studies.fields.measurement import fields_table
from studies.records import add_records
from studies.study_file import read_study
from studies.study_tables import summarise
from studies.tables import placed_report

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "studies/results"
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "datasets/README.md"),
    *(path for folder in ("docs", "studies/docs") for path in sorted((ROOT / folder).glob("*.md"))),
]
RESULTS = [f for f in sorted(FOLDER.glob("*.json")) if not f.name.endswith(".fields.json")]


@pytest.mark.slow
@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_results(file, tmp_path):
    """
    Every run has the study's settings, and a document has the table made from the runs.

    The table stands below its command, also for other baselines that a document names. An
    unfinished study may have fewer runs, which its table says.
    """
    name = f"studies/{file.stem}.yaml"
    study = read_study(ROOT / name)
    results = json.loads(file.read_text())
    assert 0 < len(results) <= sum(len(system.seeds) for system in study.systems.values())
    assert add_records(study, tmp_path, file) == len(results)
    tables = dict.fromkeys(["", *_baselines(name)], 0)
    for document in DOCUMENTS:
        for options, table in _tables_behind(name, document.read_text()):
            other = read_study(ROOT / name, options or None)
            rows = summarise(other, read_runs(other, tmp_path))
            assert table in placed_report(other, rows), (document, options)
            tables[options] += 1
    assert all(tables.values()), tables
    for record in results:
        assert {"torch", "detectron2", "python", "ocr_panoptic", "device"} < set(record["run"])
        assert record["wall_seconds"] > 0


def _baselines(name: str) -> list[str]:
    """Return the further baselines that the documents name for a study."""
    texts = "\n".join(document.read_text() for document in DOCUMENTS)
    return [shlex.split(c)[-1] for c in re.findall(rf"{name}.* --baseline .*", texts)]


def _tables_behind(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the baseline and the text of each table between a study's command and the next."""
    for section in re.split(r"^(?=## )|(?=python -m studies\.run)", text, flags=re.M):
        command, _, rest = section.partition("\n")
        if f"python -m studies.run {name}" in command:
            _, _, baseline = command.partition(" --baseline ")
            for table in re.findall(r"(?:^\|.*\n?)+", rest, re.M):
                if re.match(r"\| (system .*parameters|gain of|\w+/\w+ )", table):
                    yield "".join(shlex.split(baseline)), table.strip()


def test_every_figure_is_shown():
    texts = [document.read_text() for document in DOCUMENTS]
    for figure in FOLDER.glob("*.png"):
        assert any(f"results/{figure.name}" in text for text in texts), figure


def test_the_receptive_fields_equal_the_document():
    document = (ROOT / "studies/docs/camvid_tables.md").read_text()
    shown = json.loads((FOLDER / "camvid.fields.json").read_text())[2:]
    for line in fields_table(shown).splitlines()[2:]:
        assert line in document
