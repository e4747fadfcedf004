"""Trains systems with several seeds under equal settings, and keeps records of their runs."""

import os
import shlex
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectron2.evaluation.testing import flatten_results_dict
from detectron2.modeling import build_model
from filelock import FileLock, Timeout

from ocr_panoptic.config.files import load_config
from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.stored import evaluation_folder, read_evaluation
from ocr_panoptic.formats.files import read_json, write_json
from ocr_panoptic.formats.run_folder import read_training_log
from ocr_panoptic.predict.complete import complete_config

RECORD = "study_run.json"
Records = Sequence[Mapping[str, Any]]  # the result of read_runs


@dataclass(frozen=True)
class System:
    """A training setup that a study compares with others."""

    config: Path
    opts: tuple[str, ...]  # KEY VALUE ...
    seeds: tuple[int, ...]

    def settings(self, seed: int) -> dict[str, Any]:
        """Return the settings of the run with this seed, as the run's record stores them."""
        return {"config": self.config.name, "opts": [*self.opts, "SEED", str(seed)]}


@dataclass(frozen=True)
class Study:
    """The systems and the metrics of a study; the main metric comes first."""

    systems: Mapping[str, System]
    metrics: tuple[str, ...]  # "task/metric" in metrics.json

    def __post_init__(self) -> None:
        for name in self.systems:  # runs are stored in folders of these names
            for fault in file_name_faults(name):
                raise UserError(
                    f"system {name!r}: its runs lie in a folder of this name, but "
                    f"{fault.replace('file_name', 'the name')}"
                )

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(s for system in self.systems.values() for s in system.seeds))


def run_study(study: Study, train: Sequence[str], output: Path) -> None:
    """
    Train all missing runs of a study, seed by seed: one seed for all systems, then the next.

    Each run is stored in ``<system>/seed<n>``. An interrupted run is resumed from its last
    checkpoint. Several processes can run the same study at the same time: each skips the runs that
    another process trains.

    Args:
        train: interpreter and training script (train_net.py or similar).
    """
    count, runs = len(read_runs(study, output)), sum(len(s.seeds) for s in study.systems.values())
    print(f"{count} of {runs} runs are finished", flush=True)
    for seed in study.seeds:
        for name, system in study.systems.items():
            if seed not in system.seeds:
                continue
            folder = output / name / f"seed{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(folder / "study_run.lock", blocking=False):
                    if not (folder / RECORD).is_file():
                        print(f"{name}, seed {seed}: {folder}", flush=True)
                        start = time.perf_counter()
                        _run(study, name, seed, train, folder)
                        count, minutes = count + 1, (time.perf_counter() - start) / 60
                        print(f"{count} of {runs} runs finished; the last took {minutes:.1f} min")
            except Timeout:
                print(f"{name}, seed {seed}: another process is training this run", flush=True)


def _run(study: Study, name: str, seed: int, train: Sequence[str], folder: Path) -> None:
    system = study.systems[name]
    resumed = (folder / "last_checkpoint").is_file()
    opts = [*system.opts, "SEED", str(seed), "OUTPUT_DIR", str(folder)]
    command = [*train, "--config-file", str(system.config), "--resume", "auto", *opts]
    start = time.perf_counter()
    with open(folder / "study_log.txt", "a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        received = []

        def pass_on(number: int, frame: object) -> None:
            received.append(signal.Signals(number))
            # send_signal() could reap a child that has ended, so that wait4() would not find it.
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

        # Signals are passed on to the training, so that it saves its state before both end.
        usual = {n: signal.signal(n, pass_on) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)
        process.returncode = os.waitstatus_to_exitcode(status)
    if received:
        print(f"{name}, seed {seed}: stopped by {received[0].name}. Repeat the command to continue")
        raise SystemExit(128 + received[0])
    if process.returncode:
        raise UserError(
            f"{name}, seed {seed} failed with exit code {process.returncode}; see {log.name}. "
            f"The command was: {shlex.join(command)}"
        )
    cfg = load_config(str(system.config), opts)
    complete_config(cfg, training=True)  # MAX_ITER may depend on the data
    evaluation = read_evaluation(evaluation_folder(folder, cfg.DATASETS.TEST[0]))
    metrics = flatten_results_dict(evaluation.results)
    if absent := [metric for metric in study.metrics if metric not in metrics]:
        measured = ", ".join(m for m in metrics if "-" not in m)
        raise UserError(f"{folder}: the evaluation lacks {', '.join(absent)}; it has {measured}")
    times = [row["time"] for row in read_training_log(folder) if "time" in row]
    record = {
        "system": name,
        "seed": seed,
        **system.settings(seed),
        # Paths are left out: a study's folder may be moved.
        "run": {k: v for k, v in evaluation.run.items() if k not in ("output_dir", "weights")},
        "metrics": metrics,
        "parameters": sum(p.numel() for p in build_model(cfg).parameters()),
        "seconds_per_iteration": statistics.median(times) if times else None,
        # For an interrupted run, the next values cover only the last attempt.
        "wall_seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "resumed": resumed,
        "peak_memory_bytes": usage.ru_maxrss * 1024,  # resident memory
    }
    write_json(folder / RECORD, record, indent=1)


def read_runs(study: Study, output: Path) -> list[dict[str, Any]]:
    """
    Return the records of all finished runs, ordered by system and seed.

    UserError is raised if a run's settings differ from the study's.
    """
    records = []
    for name, system in study.systems.items():
        for seed in system.seeds:
            file = output / name / f"seed{seed}" / RECORD
            if file.is_file():
                records.append(read_json(file))
                check_record(study, name, seed, records[-1], file)
    return records


def check_record(study: Study, name: str, seed: int, record: Mapping[str, Any], file: Path) -> None:
    """Raise a UserError if a record's config or overrides differ from the study's."""
    then, now = map(_settings_by_key, (record, study.systems[name].settings(seed)))
    changed = [key for key in then | now if then.get(key) != now.get(key)]
    if changed:
        found, wanted = (
            ", ".join(f"{key} {settings[key]}" for key in changed if key in settings) or "defaults"
            for settings in (then, now)
        )
        raise UserError(
            f"{file}: {name}, seed {seed} was trained with {found}, but the study has {wanted}. "
            "Name another --output, or remove that run."
        )


def _settings_by_key(settings: Mapping[str, Any]) -> dict[str, str]:
    opts = map(str, settings["opts"])
    return {"config": settings["config"], **dict(zip(opts, opts))}
