"""Read the repository's studies, invent records of finished runs, and split tables into cells."""

import functools

from studies.study_file import PlacedStudy, read_study

from .tiny_runs import ROOT


@functools.cache
def repository_study(name: str, baseline: str | None = None) -> PlacedStudy:
    """Read a study file of the repository, and load the configs of all the study's systems."""
    return read_study(ROOT / f"studies/{name}.yaml", baseline)


def run_record(system: str, seed: int, value: float | None, **classes) -> dict:
    return {
        "system": system,
        "seed": seed,
        "metrics": {"sem_seg/mIoU": value, **{f"sem_seg/IoU-{c}": v for c, v in classes.items()}},
        "parameters": 2_500_000,
        "seconds_per_iteration": seed / 10,
        "cpu_seconds": 100 * seed,
        "peak_memory_bytes": seed * 2**20,
    }


def cells(table: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]
