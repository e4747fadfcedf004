"""A plan: a config for a data set, with the reason for each value that the data decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from tabulate import tabulate

from ocr_panoptic.config.files import config_path, load_config, values_by_key, values_of_file
from ocr_panoptic.data.data_file import DataFiles, data_options, read_data_files
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import write_text
from ocr_panoptic.predict import run_info

from .fingerprint import Fingerprint, fingerprint
from .measure import measured_costs
from .rules import RULES, Decision, Machine, Situation, base_config
from .schedule import iterations


@dataclass(frozen=True)
class Plan:
    """
    A planned config, which prints as a short table.

    Attributes:
        data: the facts of the data.
        base: name of the config that is adapted.
        decisions: the values that differ from it, with their reasons.
        places: values that name the data and the run's folder, and those that the user has given.
    """

    data: Fingerprint
    base: Decision
    decisions: tuple[Decision, ...]
    places: Mapping[str, Any]

    def __str__(self) -> str:
        rows = [("config", self.base.value, self.base.because), *self.decisions]
        return (
            f"{self.data}\n\n{tabulate(rows, ('key', 'value', 'because'), disable_numparse=True)}"
        )

    def yaml(self) -> str:
        """Return the config as YAML; each planned value has its reason as a comment."""
        values = values_of_file(str(config_path(self.base.value)))
        values |= {d.key: d.value for d in self.decisions} | dict(self.places)
        values["VERSION"] = 2  # Detectron2's
        reasons = {d.key: d.because for d in self.decisions}
        head = [
            "Planned by `ocr-panoptic plan`. Values with a comment follow from the data and the",
            f"machine, all others from {self.base.value}.",
            *str(self.data).splitlines(),
        ]
        return "".join(f"# {line}\n" for line in head) + _lines(values, reasons)

    def write(self, path: Path) -> None:
        """Write the config to a YAML file."""
        write_text(path, self.yaml())


def make_plan(
    files: DataFiles, minutes: float | None = None, overrides: Mapping[str, Any] = {}
) -> Plan:
    """
    Plan a training on the data that data files describe, for this machine.

    Args:
        minutes: length of the training with its evaluations, for which some steps are measured;
            None for a number of passes over the images.
        overrides: values of keys that the user has decided.
    """
    length = sorted({"SOLVER.MAX_ITER", "SOLVER.EPOCHS"} & {*overrides})
    if minutes and length:
        raise UserError(
            f"Both --minutes and {' and '.join(length)} set the length of the training. Give only "
            "one of them."
        )
    files = read_data_files(files)
    data, machine = fingerprint(files), this_machine()
    name, because = base_config(data, machine)
    cfg = load_config(name, overrides)
    own = {key: value for key, value in values_by_key(cfg).items() if key in overrides}
    places = {"OUTPUT_DIR": f"./output/{data.name}", **data_options(files), **own}
    situation = Situation(data, machine, values_by_key(cfg), overrides)
    decided = [d for rule in RULES for d in rule(situation) if d.key not in overrides]
    if not length:
        if minutes:
            values = {**places, **{d.key: d.value for d in decided}, **overrides}
            costs = measured_costs(load_config(name, values), files)
        planned = iterations(situation, minutes, costs if minutes else None)
        decided += [d for d in planned if d.key not in overrides]
    return Plan(data, Decision("config", name, because), tuple(decided), places)


def this_machine() -> Machine:
    """Return the facts of this machine."""
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Machine("cuda", memory, is_mixed=True)
    return Machine("cpu", 0.0, is_mixed=run_info.cpu_computes_bfloat16())


def _lines(values: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Return values by full key as YAML, with a section for each part of a key."""
    text = ""
    former: tuple[str, ...] = ()
    for key in sorted(values, key=lambda key: [(bool(part), part) for part in key.split(".")]):
        *sections, name = key.split(".")
        for depth, section in enumerate(sections):
            if tuple(sections[: depth + 1]) != tuple(former[: depth + 1]):
                text += f"{'  ' * depth}{section}:\n"
        former = tuple(sections)
        text += "  " * len(sections) + f"{name}: {_scalar(values[key])}"
        text += f"  # {reasons[key]}\n" if key in reasons else "\n"
    return text


def _scalar(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = [*value]
    dumped = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return dumped.removesuffix("...\n").strip()
