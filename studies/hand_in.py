"""
Make a record of a finished run of one of the paper's rows, or print the table of all records.

    python -m studies.hand_in RUN CONFIG [KEY VALUE ...]
    python -m studies.hand_in --table

RUN is the run's OUTPUT_DIR; CONFIG and KEY VALUE are the row's, from docs/paper_tables.md. The
record goes to studies/results/paper, and holds the metrics, the settings that differ from the
row's, the versions, and a digest of the data. The data must be where the run has found them.
"""

import argparse
import hashlib
import json
import math
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detectron2.data import DatasetCatalog
from tabulate import tabulate

from ocr_panoptic.config.files import find_config, load_config, overrides_of, values_by_key
from ocr_panoptic.data.places import datasets_root
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.stored import evaluation_folder, read_evaluation
from ocr_panoptic.formats.files import read_json, write_json
from ocr_panoptic.formats.run_folder import read_training_log
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.program import run_program

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "studies/results/paper"
PAGE = ROOT / "docs/paper_tables.md"
# Settings that change no result, and settings that the record or the data give.
FREE = r"OUTPUT_DIR|SEED|VIS_PERIOD|LOGGERS|CUDNN_BENCHMARK|MODEL\.DEVICE|DATALOADER\.NUM_WORKERS"
FREE += r"|DATASETS\.FILES|SOLVER\.(CHECKPOINT\w+|GATHER_METRIC_PERIOD)"
FREE += r"|TEST\.(EVAL\w+|BEST_CHECKPOINT|PATIENCE)"
PLACES = ("output_dir", "weights")  # of the run, which are different on every machine
METRICS = {  # column of the paper's tables -> task and metric
    "AP": ("bbox", "AP"),
    "mIoU": ("sem_seg", "mIoU"),
    "paper": ("sem_seg", "mIoU"),
    **{name: ("panoptic_seg", name) for name in ("PQ", "PQ_th", "PQ_st")},
}


def make_record(run: Path, config: str, keys: Sequence[str]) -> dict[str, Any]:
    """
    Return the record of a run, after checking that the run is finished and evaluated.

    Args:
        run: OUTPUT_DIR of the run.
        config: name of the row's config, such as "COCO-PanopticSegmentation/panoptic_fpn_R_50_3x".
        keys: the row's KEY VALUE ...

    Raises:
        UserError: the training or its evaluation is not finished, or the main metric is undefined.
    """
    cfg, row = load_config(str(run)), load_config(config, keys)
    log = [line for line in read_training_log(run) if "total_loss" in line]
    last = max((line["iteration"] for line in log), default=-1)
    evaluation = read_evaluation(evaluation_folder(run, cfg.DATASETS.TEST[0]))
    done = evaluation.run.get("iteration")
    if last + 1 < cfg.SOLVER.MAX_ITER or done != cfg.SOLVER.MAX_ITER:
        raise UserError(
            f"{run}: the log ends at iteration {last + 1} and the evaluation is of iteration "
            f"{done}, but SOLVER.MAX_ITER is {cfg.SOLVER.MAX_ITER}. Finish the training with "
            "--resume; an evaluation of other weights does not count."
        )
    metrics = {
        f"{task}/{name}": value
        for task, values in evaluation.results.items()
        for name, value in values.items()
        if "-" not in name
    }
    main = "panoptic_seg/PQ" if "panoptic_seg" in evaluation.results else "sem_seg/mIoU"
    if metrics.get(main) is None:
        raise UserError(f"{run}: the evaluation has no {main}. Was it of the right data?")
    complete_config(cfg, training=True)
    names = (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST)
    times = [line["time"] for line in read_training_log(run) if "time" in line]
    return {
        "config": Path(find_config(config))
        .relative_to(ROOT / "configs")
        .with_suffix("")
        .as_posix(),
        "keys": {key: str(value) for key, value in overrides_of(keys).items()},
        "changed": changed_settings(values_by_key(row), values_by_key(cfg)),
        "metrics": {name: v for name, v in metrics.items() if v is not None and math.isfinite(v)},
        "data": {name: data_digest(DatasetCatalog.get(name)) for name in names},
        "run": {key: value for key, value in evaluation.run.items() if key not in PLACES},
        "seconds_per_iteration": statistics.median(times) if times else None,
    }


def changed_settings(row: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, list]:
    """Return the settings of a run that differ from its row's, as key -> [row's, run's value]."""
    row, run = (json.loads(json.dumps(values)) for values in (row, run))  # tuples become lists
    changed = [key for key in sorted(row) if row[key] != run[key] and not re.fullmatch(FREE, key)]
    # NUM_CLASSES 0 takes the number from the data.
    return {k: [row[k], run[k]] for k in changed if row[k] or not k.endswith(".NUM_CLASSES")}


def data_digest(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """
    Return the number of records of a data set, and a digest that is equal on all machines.

    The digest covers the paths below DETECTRON2_DATASETS and the sizes in bytes of all images and
    label files, the sizes in pixels, and the annotated segments, or the number of objects.
    """
    digest = hashlib.sha256()
    for record in sorted(records, key=lambda record: record["file_name"]):
        facts = {key: _fact(key, value) for key, value in record.items()}
        digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    return {"images": len(records), "sha256": digest.hexdigest()}


def _fact(key: str, value: Any) -> Any:
    if key.endswith("file_name"):
        path, root = Path(value).absolute(), datasets_root()
        below = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        return below.as_posix(), path.stat().st_size
    return len(value) if key == "annotations" else value


def read_records() -> list[dict[str, Any]]:
    """Return all records that were handed in, ordered by config, keys and seed."""
    records = [read_json(file) for file in sorted(FOLDER.glob("*.json"))]
    return sorted(records, key=lambda r: (r["config"], str(r["keys"]), r["run"]["seed"]))


def published() -> dict[tuple[str, str], dict[str, str]]:
    """
    Return the numbers of the paper: (config, keys) of a row -> column -> number.

    Rows of test servers, and rows that no single config trains, are left out.
    """
    found, header = {}, []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif "config" in header and len(configs := re.findall(r"`([^`]+)`", cells[1])) == 1:
            row = dict(zip(header, cells, strict=True))
            words = row.get("keys", "").strip("`")
            numbers = {name: row[name] for name in METRICS if name in row}
            if "test" not in row["row"] or "Cityscapes" not in row["row"]:
                found[configs[0], _joined(overrides_of(shlex.split(words)))] = numbers
    return found


def _joined(keys: Mapping[str, Any]) -> str:
    return " ".join(f"{key} {value}" for key, value in sorted(keys.items()))


def records_table(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of records in Markdown, or a sentence if there is none."""
    paper, rows = published(), []
    for record in records:
        keys = _joined(record["keys"])
        numbers = paper.get((record["config"], keys), {})
        results = {
            METRICS[column][1]: f"{record['metrics']['/'.join(METRICS[column])]:.2f} ({number})"
            for column, number in numbers.items()
        }
        main = ("panoptic_seg/PQ", "sem_seg/mIoU")
        results = results or {
            name.split("/")[1]: f"{record['metrics'][name]:.2f}"
            for name in main
            if name in record["metrics"]
        }
        run, changed = record["run"], record["changed"]
        rows.append(
            [
                f"`{record['config']}`" + (f" `{keys}`" if keys else ""),
                ", ".join(f"{name} {value}" for name, value in results.items()),
                run["seed"],
                f"{run['processes']} x {run['device']}",
                ", ".join(f"`{key} {theirs}`" for key, (_, theirs) in changed.items()),
            ]
        )
    headers = ["row", "result (paper)", "seed", "machine", "changed"]
    return tabulate(rows, headers, "github") if rows else "No run has been handed in yet."


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m studies.hand_in",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, nargs="?", help="OUTPUT_DIR of the run")
    parser.add_argument("config", nargs="?", help="name of the row's config")
    parser.add_argument("keys", nargs="*", metavar="KEY VALUE", help="keys of the row")
    parser.add_argument("--table", action="store_true", help="print the table of all records")
    args = parser.parse_args(argv)
    if args.table:
        return print(records_table(read_records()))
    if not args.config:
        parser.error("name RUN and CONFIG, or --table")
    record = make_record(args.run, args.config, args.keys)
    name = f"{Path(record['config']).name}-{record['run']['weights_sha256'][:8]}.json"
    FOLDER.mkdir(exist_ok=True)
    write_json(FOLDER / name, record, indent=1)
    print(records_table([record]))
    print(f"\nWrote {FOLDER / name}. Put the output of --table into docs/paper_tables.md.")


if __name__ == "__main__":
    run_program(main)
