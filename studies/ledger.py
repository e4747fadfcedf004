"""
Write the tables of studies/docs/ledger.md, the comparisons of OCR with other heads.

    python -m studies.ledger

The published numbers are from studies/docs/ledger.yaml. The numbers of this project are computed
from the records in studies/results that the file names.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.comparing.compare import markdown
from ocr_panoptic.workbench.comparing.intervals import Interval, gain_text

ROOT = Path(__file__).resolve().parents[1]
DATA, PAGE = ROOT / "studies/docs/ledger.yaml", ROOT / "studies/docs/ledger.md"
RESULTS = ROOT / "studies/results"
HEADS = ("OCR", "plain", "PPM")

Ledger = Mapping[str, Sequence[Mapping[str, Any]]]


def heads_table(entry: Mapping[str, Any]) -> str:
    """
    Return the conditions and a table of published heads, and how many heads are above OCR.

    Args:
        entry: entry of "published".
    """
    heads = entry["heads"]
    table = {name: {"head": _bold(name, name)} for name in heads}
    above = {"head": "heads above OCR"}
    for column, values in zip(entry["columns"], zip(*heads.values(), strict=True), strict=True):
        known = [value for value in values if value is not None]
        digits, ocr = _digits(known), values[[*heads].index("OCR")]
        for name, value in zip(heads, values):
            table[name][column] = "-" if value is None else _bold(name, f"{value:.{digits}f}")
        above[column] = f"{sum(value > ocr for value in known)} of {len(known) - 1}"
    source = f"[{entry['name']}]({entry['source']}): {entry['conditions']}."
    return f"{source} Numbers are {entry['metric']}.\n\n{markdown([*table.values(), above])}"


def _bold(name: str, text: str) -> str:
    return f"**{text}**" if name == "OCR" else text


def _digits(values: Iterable[float]) -> int:
    """Return how many decimals published numbers have, 1 or 2."""
    return 1 if all(round(value, 1) == value for value in values) else 2


def pairs_table(entries: Sequence[Mapping[str, Any]], first: str, second: str) -> str:
    """
    Return a table of pairs of published numbers and their differences; a source stands once.

    Args:
        entries: entries of "with_and_without" or "twice".
        first, second: headings of the numbers.
    """
    table = []
    for entry in entries:
        source = f"[{entry['name']}]({entry['source']}): {entry['conditions']}"
        for number, (network, metric, before, after) in enumerate(entry["rows"]):
            gains = [b - a for a, b in zip(before, after, strict=True)]
            digits = _digits([*before, *after])
            table.append(
                {
                    "source": "" if number else source,
                    "network": network,
                    "metric": metric,
                    first: ", ".join(f"{value:.{digits}f}" for value in before),
                    second: ", ".join(f"{value:.{digits}f}" for value in after),
                    "difference": ", ".join(f"{gain:+.{digits}f}" for gain in gains),
                }
            )
    return markdown(table)


def own_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of this project's comparisons, entries of "own"."""
    return markdown([own_row(entry) for entry in entries])


def own_row(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a comparison: OCR's differences to other heads, paired by seed."""
    values = metric_by_seed(entry["study"], entry["metric"])
    place = f" at {entry['at']}" if "at" in entry else ""
    heads = {head: values[entry[head] + place] for head in HEADS if head in entry}
    ocr, plain, ppm = (heads.get(head, {}) for head in HEADS)
    pairs = [(seed, plain[seed]) for seed in ocr if seed in plain]
    known = [value for _, value in pairs]
    return {
        "conditions": entry["conditions"],
        "study": f"`{entry['study']}`",
        "seeds": str(len(pairs)),
        "plain": f"{entry['metric'].partition('/')[2]} {statistics.fmean(known):.2f}",
        "OCR - plain": gain_text(Interval.of([ocr[seed] - value for seed, value in pairs])),
        "OCR - PPM": gain_text(
            Interval.of([ocr[seed] - value for seed, value in ppm.items()]) if ppm else None
        ),
    }


def metric_by_seed(study: str, metric: str) -> dict[str, dict[int, float]]:
    """Return a metric of all runs in a study's records: system -> seed -> value."""
    values: dict[str, dict[int, float]] = {}
    for record in json.loads((RESULTS / f"{study}.json").read_text(encoding="utf-8")):
        values.setdefault(record["system"], {})[record["seed"]] = record["metrics"][metric]
    return values


def read_ledger() -> Ledger:
    return yaml.safe_load(DATA.read_text(encoding="utf-8"))


def written_page(page: str, ledger: Ledger) -> str:
    """Return the page's text with new tables, each from its comment to the next comment."""
    blocks = {entry["name"]: heads_table(entry) for entry in ledger["published"]}
    blocks["with and without"] = pairs_table(ledger["with_and_without"], "without", "with OCR")
    blocks["twice"] = pairs_table(ledger["twice"], "first", "second")
    blocks["own"] = own_table(ledger["own"])
    for name, block in blocks.items():
        start, end = f"<!-- {name} -->\n", "\n<!-- end -->"
        if page.count(start) != 1:
            raise UserError(f"{PAGE}: expected one line {start.strip()}, found {page.count(start)}")
        before, _, rest = page.partition(start)
        page = f"{before}{start}\n{block}\n{end}{rest.partition(end)[2]}"
    return page


def main(argv: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(
        "python -m studies.ledger",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    write_text(PAGE, written_page(PAGE.read_text(encoding="utf-8"), read_ledger()))


if __name__ == "__main__":
    run_program(main)
