"""Published results come from published studies, and the documents show them."""

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from ocr_panoptic.workbench.comparing.study import read_runs
from studies.fields.measurement import fields_table
from studies.records import add_records
from studies.study_tables import study_report, summarise
from support.study_records import repository_study
from support.tiny_runs import ROOT

FOLDER = ROOT / "studies/results"
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "datasets/README.md"),
    *(path for folder in ("docs", "studies/docs") for path in sorted((ROOT / folder).glob("*.md"))),
]
TEXTS = {document: document.read_text() for document in DOCUMENTS}
RESULTS = [f for f in sorted(FOLDER.glob("*.json")) if not f.name.endswith(".fields.json")]


@pytest.mark.slow
@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_results(file, tmp_path):
    """
    Every run has the study's settings, and a document has the table made from the runs.

    The table stands below its command, also for other baselines that a document names. An
    unfinished study may have fewer runs, which its table says.
    """
    study = repository_study(file.stem)
    results = json.loads(file.read_text())
    assert 0 < len(results) <= sum(len(system.seeds) for system in study.systems.values())
    assert add_records(study, tmp_path, file) == len(results)
    commands = re.findall(rf"studies/{file.stem}.yaml.* --baseline (.*)", "\n".join(TEXTS.values()))
    shown = dict.fromkeys([None, *(shlex.split(command)[0] for command in commands)], 0)
    for document, text in TEXTS.items():
        for baseline, table in _tables_behind(f"studies/{file.stem}.yaml", text):
            other = repository_study(file.stem, baseline)
            rows = summarise(other, read_runs(other, tmp_path))
            assert table in study_report(other, rows), (document, baseline)
            shown[baseline] += 1
    assert all(shown.values()), shown
    for record in results:
        assert {"torch", "detectron2", "python", "ocr_panoptic", "device"} < set(record["run"])
        assert record["wall_seconds"] > 0


def _tables_behind(name: str, text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the baseline and the text of each table between a study's command and the next."""
    for section in re.split(r"^(?=## )|(?=python -m studies\.run)", text, flags=re.M):
        command, _, rest = section.partition("\n")
        if f"python -m studies.run {name}" in command:
            baseline = shlex.split(command.partition(" --baseline ")[2])
            for table in re.findall(r"(?:^\|.*\n?)+", rest, re.M):
                if re.match(r"\| (system .*parameters|gain of|\w+/\w+ )", table):
                    yield (baseline or [None])[0], table.strip()


def test_the_receptive_fields_equal_the_document():
    document = TEXTS[ROOT / "studies/docs/camvid_tables.md"]
    shown = json.loads((FOLDER / "camvid.fields.json").read_text())[2:]
    for line in fields_table(shown).splitlines()[2:]:
        assert line in document
