"""The published results are those of the published studies, and the documents show them."""

import json
import re
import shlex
from pathlib import Path

import pytest

from ocr_panoptic.analysis.field_measurement import fields_table
from ocr_panoptic.analysis.study import add_records, read_records
from ocr_panoptic.analysis.study_file import read_study
from ocr_panoptic.analysis.study_summary import summarise
from ocr_panoptic.visualization.study_tables import gains_table, metric_gains_table, study_table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/results"
DOCUMENTS = [ROOT / "README.md", ROOT / "datasets/README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = [f for f in sorted(FOLDER.glob("*.json")) if not f.name.endswith(".fields.json")]


@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_results(file, tmp_path):
    """Every run has the study's settings, none is missing, and a document has the table that is
    made from them, beside the command; the same for other baselines that a document names."""
    name = f"studies/{file.stem}.yaml"
    study = read_study(ROOT / name)
    results = json.loads(file.read_text())
    assert len(results) == sum(len(system.seeds) for system in study.systems.values())
    assert add_records(study, tmp_path, file) == len(results)
    texts = [document.read_text() for document in DOCUMENTS]
    rows = summarise(study, read_records(study, tmp_path))
    is_placed = any(row["place"] for row in rows)
    table = gains_table(rows, study.metrics[0]) if is_placed else study_table(rows, study.metrics)
    with_table = [text for text in texts if table in text]
    assert with_table, f"no document has this table:\n{table}"
    assert any(f"python tools/study.py {name}" in text for text in with_table)
    for text in texts:
        for command in re.findall(rf"python.* {name}.* --baseline .*", text):
            other = read_study(ROOT / name, shlex.split(command)[-1])
            rows = summarise(other, read_records(other, tmp_path))
            table = gains_table(rows, study.metrics[0]) if is_placed else ""
            assert (table or metric_gains_table(rows, study.metrics)) in text, command
    for record in results:
        assert {"torch", "detectron2", "python", "ocr_panoptic", "device"} < set(record["run"])
        assert record["wall_seconds"] > 0


def test_every_figure_is_shown():
    texts = [document.read_text() for document in DOCUMENTS]
    for figure in FOLDER.glob("*.png"):
        assert any(f"results/{figure.name}" in text for text in texts), figure


def test_the_receptive_fields_are_those_of_the_document():
    document = (ROOT / "docs/camvid_tables.md").read_text()
    shown = json.loads((FOLDER / "camvid.fields.json").read_text())[2:]
    for line in fields_table(shown).splitlines()[2:]:
        assert line in document
