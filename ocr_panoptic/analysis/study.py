"""Systems trained with several seeds under equal settings, and the records of their runs."""

import json
import os
import shlex
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detectron2.modeling import build_model

from ocr_panoptic.engine import complete_config, load_config
from ocr_panoptic.files import locked, write_json
from ocr_panoptic.run_folder import evaluation_folder, read_evaluation, read_training_log

from .study_file import Study

RECORD = "study_run.json"


def run_study(study: Study, train: Sequence[str], output: Path) -> None:
    """
    Train what has not been trained: seed by seed, so that an interrupted study compares equals.
    A run that was interrupted is resumed from its last checkpoint. Several processes may do so
    side by side: each leaves out what another one is training.

    Args:
        train: command that trains: an interpreter, and train_net.py or what does the same.
        output: gets ``<system>/seed<n>``, each a run folder with a ``study_run.json``.

    Raises:
        ChildProcessError: a run failed; its log is named.
        ValueError: an evaluation has no such metric; or see :func:`read_records`.
    """
    read_records(study, output)
    for seed in study.seeds:
        for name, system in study.systems.items():
            if seed not in system.seeds:
                continue
            folder = output / name / f"seed{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with locked(folder / "study_run.lock", wait=False):
                    if not (folder / RECORD).is_file():
                        print(f"{name}, seed {seed}: {folder}", flush=True)
                        _run(study, name, seed, train, folder)
            except BlockingIOError:
                print(f"{name}, seed {seed}: another process trains it", flush=True)


def _run(study: Study, name: str, seed: int, train: Sequence[str], folder: Path) -> None:
    config = study.systems[name].config
    opts = (*study.systems[name].opts, "SEED", str(seed), "OUTPUT_DIR", str(folder))
    resumed = (folder / "last_checkpoint").is_file()
    trial = study.systems[name].trial
    command = [
        train[0],
        *(trial or train[1:]),
        "--config-file",
        str(config),
        "--resume",
        "auto",
        *opts,
    ]
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
    times = [row["time"] for row in rows if "time" in row]
    if not times:
        raise ValueError(
            f"{folder}: no iteration was timed in SOLVER.MAX_ITER {cfg.SOLVER.MAX_ITER}, the first "
            "ones never are; train for 10 or more."
        )
    absent = [metric for metric in study.metrics if metric not in metrics]
    if absent:
        found = ", ".join(m for m in metrics if "-" not in m)
        raise ValueError(f"{folder}: no metric {', '.join(absent)}; the evaluation has {found}")
    record = {
        "system": name,
        "seed": seed,
        "config": config.name,
        "opts": opts[:-2],
        **({"trial": _trial_name(trial)} if trial else {}),
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


def _trial_name(trial: Sequence[str]) -> list[str]:
    """A trial without the folder of its script."""
    return [Path(trial[0]).name, *trial[1:]] if trial else []


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
        settings = [_settings(record) for record in records]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file}: no results of tools/study.py ({error!r:.200})") from error
    for record, (name, seed), metrics, found in zip(records, places, known, settings, strict=True):
        system = study.systems.get(name) if isinstance(name, str) else None
        if system is None or seed not in system.seeds:
            continue
        _check_settings(study, name, seed, found, file)
        absent = [m for m in study.metrics if m not in metrics]
        if absent:
            raise ValueError(f"{file}: {name}, seed {seed} has no {', '.join(absent)}")
        target = output / name / f"seed{seed}" / RECORD
        if not target.is_file():
            new[target] = record
    for target, record in new.items():
        write_json(target, record, indent=1)
    return len(new)


def _settings(record: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The order of KEY VALUE pairs says nothing but where a key comes again."""
    opts = record["opts"]
    return (
        shlex.join([*record.get("trial", []), record["config"]]),
        dict(zip(map(str, opts[::2]), map(str, opts[1::2]))),
    )


def _check_settings(
    study: Study, name: str, seed: int, found: tuple[str, dict[str, str]], file: Path
) -> None:
    system = study.systems[name]
    wanted = _settings(
        {
            "config": system.config.name,
            "opts": [*system.opts, "SEED", seed],
            "trial": _trial_name(system.trial),
        }
    )
    if found != wanted:
        common = found[1].items() & wanted[1].items()
        shown, now = (
            shlex.join([config, *(part for p in opts.items() if p not in common for part in p)])
            for config, opts in (found, wanted)
        )
        raise ValueError(
            f"{file}: {name}, seed {seed} was trained with {shown}; the study has {now}. "
            "Take another --output, or remove that run."
        )


def read_records(study: Study, output: Path) -> list[dict[str, Any]]:
    """
    The records of all finished runs, by system, then seed.

    Raises:
        ValueError: a run was trained with another config or other overrides: the study's file has
            changed since.
    """
    records = []
    for name, system in study.systems.items():
        for seed in system.seeds:
            file = output / name / f"seed{seed}" / RECORD
            if file.is_file():
                record = json.loads(file.read_text())
                found = _settings(record)
                _check_settings(study, name, seed, found, file)
                records.append(record)
    return records
