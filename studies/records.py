"""Add runs from another machine, or from an earlier study, to a study."""

from pathlib import Path

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import read_json, write_json
from ocr_panoptic.workbench.comparing.study import RECORD, Study, check_record


def add_records(study: Study, output: Path, file: Path) -> int:
    """
    Add the finished runs in a file to the run folders of a study; return how many were added.

    If a run was trained with settings other than the study's, or lacks one of the study's metrics,
    UserError is raised and nothing is added.

    Args:
        output: folder of the study's runs.
        file: ``results.json`` with the runs. Runs whose system or seed is not in the study are left
            out, and no existing run is replaced.
    """
    new = {}
    for record in read_json(file):
        name, seed = record["system"], record["seed"]
        if name not in study.systems or seed not in study.systems[name].seeds:
            continue
        check_record(study, name, seed, record, file)
        if absent := [metric for metric in study.metrics if metric not in record["metrics"]]:
            raise UserError(f"{file}: {name}, seed {seed} has no {', '.join(absent)}")
        target = output / name / f"seed{seed}" / RECORD
        if not target.is_file():
            new[target] = record
    for target, record in new.items():
        write_json(target, record, indent=1)
    return len(new)
