"""The ledger of comparisons: its data are complete, and the page equals them."""

import json
import re

import pytest

from studies import ledger
from support.tiny_runs import ROOT

LEDGER, PAGE = ledger.read_ledger(), ledger.PAGE.read_text()
CONCLUSIONS = (ROOT / "docs/when_ocr_pays.md").read_text()
FRONT = (ROOT / "README.md").read_text().partition("## Where do I start?")[0]


def test_the_page_equals_the_data():
    assert ledger.written_page(PAGE, LEDGER) == PAGE
    with pytest.raises(ValueError, match="ledger.md: expected one line <!-- own -->, found"):
        ledger.written_page(PAGE.replace("<!-- own -->", ""), LEDGER)


def test_each_published_row_has_source_conditions_seeds_and_metric():
    for entry in (*LEDGER["published"], *LEDGER["with_and_without"], *LEDGER["twice"]):
        assert entry["source"].startswith("https://") and len(entry["conditions"]) > 20
        assert entry["seeds"] >= 1
        if "heads" in entry:
            rows = [
                (entry["metric"], entry["columns"], values) for values in entry["heads"].values()
            ]
        else:
            rows = [(m, a, b) for _, m, a, b in entry["rows"]]
        for metric, first, second in rows:
            assert re.search("mIoU|PQ", metric) and len(first) == len(second)
            assert all(0 < value < 100 for value in second if value is not None)


def test_each_own_row_names_records_and_conditions():
    for entry in LEDGER["own"]:
        row = ledger.own_row(entry)
        assert row["conditions"] and int(row["seeds"]) > 1
        assert row["plain"].partition(" ")[0] in ("mIoU", "PQ", "pACC")
        assert (ROOT / f"studies/{entry['study']}.yaml").is_file()


def test_an_own_row_by_hand():
    """Three seeds: the interval is 4.303 deviations of the differences / 3 ** 0.5 wide."""
    entry = {"study": "equal_features", "at": "nuclei", "metric": "sem_seg/mIoU", "conditions": "-"}
    row = ledger.own_row({**entry, "OCR": "OCR, two classifiers", "plain": "plain"})
    records = json.loads((ROOT / "studies/results/equal_features.json").read_text())
    values = {(r["system"], r["seed"]): r["metrics"]["sem_seg/mIoU"] for r in records}
    names = "OCR, two classifiers at nuclei", "plain at nuclei"
    gains = [values[names[0], seed] - values[names[1], seed] for seed in (0, 1, 2)]
    mean = sum(gains) / 3
    half = 4.3027 * (sum((gain - mean) ** 2 for gain in gains) / 2 / 3) ** 0.5
    assert row["OCR - plain"] == f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"
    plain = sum(values[names[1], seed] for seed in (0, 1, 2)) / 3
    assert (row["plain"], row["seeds"], row["OCR - PPM"]) == (f"mIoU {plain:.2f}", "3", "")


def test_each_number_of_the_text_is_in_a_table():
    blocks = re.findall(r"<!-- [\w ]+ -->\n(.*?)<!-- end -->", PAGE, re.S)
    assert len(blocks) == 7
    shown = {n for block in blocks for n in re.findall(r"\d+\.\d+", block)}
    texts = re.sub(r"\(http[^)]*\)", "", CONCLUSIONS + FRONT)
    numbers = re.findall(r"\d+\.\d+", texts)
    assert len(numbers) > 50 and {*numbers} <= shown, {*numbers} - shown
