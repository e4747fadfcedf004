"""The published results are those of the published studies, and the document shows them."""

import json
from pathlib import Path

import pytest

from ocr_panoptic.analysis.study import add_records, read_records, summarise
from ocr_panoptic.analysis.study_file import read_study
from ocr_panoptic.visualization import study_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "docs/results").glob("*.json"))


@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_results(file, tmp_path):
    """Every run has the study's settings, none is missing, and the table is made from them."""
    study = read_study(ROOT / "studies" / f"{file.stem}.yaml")
    results = json.loads(file.read_text())
    assert len(results) == len(study.seeds) * len(study.systems)
    assert add_records(study, tmp_path, file) == len(results)
    records = read_records(study, tmp_path)
    document = (ROOT / "docs/camvid_study.md").read_text()
    assert study_table(summarise(study, records), study.metrics) in document
    for record in records:
        assert {"torch", "detectron2", "python", "ocr_panoptic", "device"} < set(record["run"])
        assert record["wall_seconds"] > 0
    assert file.with_suffix(".png").is_file() and f"results/{file.stem}.png" in document
