"""Published results come from published studies, and the documents show them."""

import itertools
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from ocr_panoptic.workbench.comparing.intervals import Interval
from ocr_panoptic.workbench.comparing.study import read_runs
from studies import ledger
from studies.records import add_records
from studies.study_tables import study_report, summarise
from support.study_records import repository_study
from support.tiny_runs import ROOT

FOLDER = ROOT / "studies/results"
PAGES = {page: page.read_text() for page in sorted((ROOT / "studies/docs").glob("*.md"))}
LEDGER = ledger.read_ledger()
RESULTS = [f for f in sorted(FOLDER.glob("*.json")) if not f.name.endswith(".fields.json")]


@pytest.mark.slow
@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_results(file, tmp_path):
    """
    Every run has the study's settings, and a page or the ledger shows the systems.

    The table of a study stands below its command. An unfinished study may have fewer runs.
    """
    study = repository_study(file.stem)
    results = json.loads(file.read_text())
    assert add_records(study, tmp_path, file) == len(results)
    systems = {study.systems[record["system"]].scheme for record in results}
    assert systems == {*study.schemes}
    report = study_report(study, summarise(study, read_runs(study, tmp_path)))
    shown = [(page, t) for page, text in PAGES.items() for t in _tables_behind(file.stem, text)]
    assert all(table in report for _, table in shown), [page for page, _ in shown]
    if not shown:
        entries = [entry for entry in LEDGER["own"] if entry["study"] == file.stem]
        named = {entry[head] for entry in entries for head in ledger.HEADS if head in entry}
        assert systems - named <= {"ASPP"}
    for record in results:
        assert {"torch", "detectron2", "python", "ocr_panoptic", "device"} < set(record["run"])
        assert record["wall_seconds"] > 0


def _tables_behind(study: str, text: str) -> Iterator[str]:
    """Yield the study's tables between its command and the next."""
    for section in re.split(r"^(?=## )|(?=python -m studies\.run)", text, flags=re.M):
        command, _, rest = section.partition("\n")
        if shlex.split(command)[-1:] == [f"studies/{study}.yaml"]:
            for table in re.findall(r"(?:^\|.*\n?)+", rest, re.M):
                if re.match(r"\| (system +\| runs|\w+/\w+ )", table):
                    yield table.strip()


def test_the_receptive_fields_equal_the_document():
    page = PAGES[ROOT / "studies/docs/frozen_features.md"]
    for row in json.loads((FOLDER / "camvid.fields.json").read_text())[2:]:
        share = f"{100 * row['effective_share']:.1f} %"
        assert re.search(rf"{row['effective']:.0f}[a-z ]* at {row['feature']} \({share}", page), row


@pytest.fixture(scope="module")
def differences() -> set[tuple[str, ...]]:
    """
    Return mean and ends of all differences between systems of a study, without signs.

    The numbers are texts with one and with two decimals.
    """
    found = set()
    for file in RESULTS:
        places: dict[str, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))
        for record in json.loads(file.read_text()):
            scheme, _, place = record["system"].partition(" at ")
            places[place][scheme][record["seed"]] = record["metrics"]
        for schemes in places.values():
            for one, other in itertools.combinations(schemes.values(), 2):
                seeds = sorted({*one} & {*other})
                for metric in one[seeds[0]] if len(seeds) > 1 else ():
                    if re.search("/(PQ|PQ_th|PQ_st|mIoU|pACC|IoU-.*)$", metric):
                        pairs = [(one[s][metric], other[s].get(metric)) for s in seeds]
                        if not any(None in pair for pair in pairs):
                            gain = Interval.of([a - b for a, b in pairs])
                            ends = (gain.mean, gain.mean - gain.half, gain.mean + gain.half)
                            found |= {_sorted(f"{end:.{n}f}" for end in ends) for n in (1, 2)}
    return found


def _sorted(numbers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(number.lstrip("+-") for number in numbers))


def _intervals(text: str) -> set[tuple[str, ...]]:
    number = r"[+-]?\d+\.\d+"
    return {*map(_sorted, re.findall(rf"({number})\W* \[({number}), ({number})\]", text))}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "docs/when_ocr_pays.md"], ids=lambda path: path.stem
)
def test_each_interval_of_a_text_is_in_the_records(page, differences):
    """Intervals that no study has measured stand in a table of the page, too."""
    lines = page.read_text().splitlines()
    tables, prose = (
        _intervals("\n".join(line for line in lines if line.startswith("|") == is_table))
        for is_table in (True, False)
    )
    assert prose <= differences | tables, prose - differences - tables


def test_each_interval_of_the_front_page_is_in_the_records(differences):
    found = _intervals((ROOT / "README.md").read_text())
    assert found <= differences, found - differences
