"""Read what a run wrote: the training log and the results of the evaluation."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Evaluation:
    """
    Attributes:
        tasks: task ("panoptic_seg", "sem_seg", "bbox", "segm") -> metric -> value in percent, None
            where it is undefined.
        run: what the run says about itself (seed, versions, ...).
        per_class: a row for each class, column name -> text ("" where undefined).
    """

    tasks: dict[str, dict[str, float | None]]
    run: dict[str, Any]
    per_class: list[dict[str, str]]


def read_evaluation(folder: Path) -> Evaluation:
    """
    Args:
        folder: OUTPUT_DIR/inference/<dataset>, with the metrics.json and per_class.csv that an
            evaluation writes.

    Raises:
        FileNotFoundError: a file is missing; the message names the command that makes it.
    """
    for name in ("metrics.json", "per_class.csv"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name}: not there; evaluate the model first: "
                "python train_net.py --config-file CONFIG --eval-only MODEL.WEIGHTS WEIGHTS "
                f"OUTPUT_DIR {folder.parent.parent}"
            )
    tasks = json.loads((folder / "metrics.json").read_text())
    run = tasks.pop("run", {})
    with open(folder / "per_class.csv", newline="") as file:
        per_class = list(csv.DictReader(file))
    return Evaluation(tasks, run, per_class)


def read_training_log(path: Path) -> list[dict[str, float]]:
    """
    Read Detectron2's metrics.json (JSON lines). The file is appended to by every run in the same
    folder; where the training steps back (a resumed or a second run), the later lines replace the
    earlier ones from there on. The lines of an evaluation come behind those of later iterations.

    Returns:
        a dict for each iteration, which rises; empty where there is no such file (a run that only
        evaluates).

    Raises:
        ValueError: a line is not such a record; the message names file and line.
    """
    if not path.is_file():
        return []
    rows: dict[int, dict[str, float]] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
            iteration = row["iteration"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: expected a JSON object with an 'iteration', "
                f"found {line[:60]!r}; remove that line"
            ) from error
        if "total_loss" in row:
            rows = {known: rows[known] for known in rows if known <= iteration}
        rows[iteration] = {**rows.get(iteration, {}), **row}
    return [rows[iteration] for iteration in sorted(rows)]
