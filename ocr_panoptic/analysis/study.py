"""Several systems trained with several seeds under equal settings, and what came of it."""

import json
import os
import shlex
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detectron2.modeling import build_model

from ocr_panoptic.engine.setup import complete_config, load_config
from ocr_panoptic.files import locked, write_json
from ocr_panoptic.run_folder import evaluation_folder, read_evaluation, read_training_log

from .study_file import Study

RECORD = "study_run.json"


def run_study(study: Study, train_net: Path, python: str, output: Path) -> None:
    """
    Train what has not been trained: seed by seed, so that an interrupted study compares equals.
    A run that was interrupted is resumed from its last checkpoint. Several processes may do so
    side by side: each leaves out what another one is training.

    Args:
        train_net: the script.
        python: its interpreter.
        output: gets ``<system>/seed<n>``, each a run folder with a ``study_run.json``.

    Raises:
        ChildProcessError: a run failed; its log is named.
        ValueError: an evaluation has no such metric.
    """
    for seed in study.seeds:
        for name in study.systems:
            folder = output / name / f"seed{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with locked(folder / "study_run.lock", wait=False):
                    if not (folder / RECORD).is_file():
                        print(f"{name}, seed {seed}: {folder}", flush=True)
                        _run(study, name, seed, train_net, python, folder)
            except BlockingIOError:
                print(f"{name}, seed {seed}: another process trains it", flush=True)


def _run(study: Study, name: str, seed: int, train_net: Path, python: str, folder: Path) -> None:
    config, opts = study.systems[name]
    opts = (*opts, "SEED", str(seed), "OUTPUT_DIR", str(folder))
    resumed = (folder / "last_checkpoint").is_file()
    command = [python, str(train_net), "--config-file", str(config), "--resume", "auto", *opts]
    start = time.perf_counter()
    with open(folder / "study_log.txt", "a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ChildProcessError(
            f"{name}, seed {seed} failed with exit code {process.returncode}; see {log.name}. "
            f"The command was: {shlex.join(command)}\nIts last line: {_last_line(Path(log.name))}"
        )
    cfg = load_config(str(config), list(opts))
    complete_config(cfg)
    evaluation = read_evaluation(evaluation_folder(folder, cfg.DATASETS.TEST[0]))
    rows = read_training_log(folder)
    metrics = {
        f"{task}/{metric}": value
        for task, values in evaluation.tasks.items()
        for metric, value in values.items()
    }
    absent = [metric for metric in study.metrics if metric not in metrics]
    if absent:
        found = ", ".join(m for m in metrics if "-" not in m)
        raise ValueError(f"{folder}: no metric {', '.join(absent)}; the evaluation has {found}")
    record = {
        "system": name,
        "seed": seed,
        "config": config.name,
        "opts": opts[:-2],
        # The folder is the study's, wherever its results are read.
        "run": {k: v for k, v in evaluation.run.items() if k not in ("output_dir", "weights")},
        "metrics": metrics,
        "curves": {
            # Detectron2 counts from 0, and an evaluation after the last iteration one further.
            metric: [
                [min(row["iteration"] + 1, cfg.SOLVER.MAX_ITER), row[metric]]
                for row in rows
                if metric in row
            ]
            for metric in study.metrics
        },
        "parameters": sum(p.numel() for p in build_model(cfg).parameters()),
        "seconds_per_iteration": statistics.median(r["time"] for r in rows if "time" in r),
        # Of the last attempt, should the run have been interrupted.
        "wall_seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "resumed": resumed,
        "peak_memory_bytes": usage.ru_maxrss * 1024,  # resident, of the process and its children
    }
    write_json(folder / RECORD, record, indent=1)


def _last_line(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(-min(log.stat().st_size, 2000), os.SEEK_END)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "none")


def add_records(study: Study, output: Path, file: Path) -> int:
    """
    Put runs that another machine, or an earlier study, has finished into the run folders.

    Args:
        file: a ``results.json`` of tools/study.py. Runs of other systems and seeds are left out,
            and none is replaced.

    Returns:
        number of runs added

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is something else, or a run has the name of a system here, but another
            config, other overrides, or no such metric. Then nothing is added.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such results")
    new = {}
    try:
        records = json.loads(file.read_text(encoding="utf-8"))
        places = [(record["system"], record["seed"]) for record in records]
        known = [{*record["metrics"], *record["curves"]} for record in records]
        settings = [(record["config"], [*map(str, record["opts"])]) for record in records]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file}: no results of tools/study.py ({error!r:.200})") from error
    for record, (name, seed), metrics, found in zip(records, places, known, settings, strict=True):
        if name not in list(study.systems) or seed not in study.seeds:
            continue
        config, opts = study.systems[name]
        if found != (config.name, [*opts, "SEED", str(seed)]):
            raise ValueError(
                f"{file}: {name}, seed {seed} was trained with {found[0]} {shlex.join(found[1])}; "
                f"the study has {config.name} {shlex.join(opts)}"
            )
        absent = [m for m in study.metrics if m not in metrics]
        if absent:
            raise ValueError(f"{file}: {name}, seed {seed} has no {', '.join(absent)}")
        target = output / name / f"seed{seed}" / RECORD
        if not target.is_file():
            new[target] = record
    for target, record in new.items():
        write_json(target, record, indent=1)
    return len(new)


def read_records(study: Study, output: Path) -> list[dict[str, Any]]:
    """The records of all finished runs, by system, then seed."""
    files = (output / n / f"seed{s}" / RECORD for n in study.systems for s in study.seeds)
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def summarise(study: Study, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """
    One row for each system: runs, mean and standard deviation (of the sample) of each metric over
    the seeds, mean and deviation of the difference to the baseline with the same seed, parameters,
    median time of an iteration, largest peak of memory. None where there are too few runs. A metric
    that an evaluation left undefined (null) does not count.
    """
    of = {(r["system"], r["seed"]): r for r in records}
    rows = []
    for name in study.systems:
        runs = [of[name, seed] for seed in study.seeds if (name, seed) in of]
        row: dict[str, Any] = {"system": name, "runs": len(runs)}
        for metric in study.metrics:
            row[metric] = _mean_and_deviation([r["metrics"].get(metric) for r in runs])
            pairs = [
                (r["metrics"].get(metric), of[study.baseline, r["seed"]]["metrics"].get(metric))
                for r in runs
                if (study.baseline, r["seed"]) in of and name != study.baseline
            ]
            row[f"{metric} - baseline"] = _mean_and_deviation(
                [a - b for a, b in pairs if a is not None and b is not None]
            )
        row["parameters"] = runs[0]["parameters"] if runs else None
        times = [r["seconds_per_iteration"] for r in runs]
        row["seconds_per_iteration"] = statistics.median(times) if runs else None
        row["peak_memory_bytes"] = max((r["peak_memory_bytes"] for r in runs), default=None)
        rows.append(row)
    return rows


def _mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [v for v in values if v is not None]
    mean = statistics.fmean(known) if known else None
    return mean, statistics.stdev(known) if len(known) > 1 else None
