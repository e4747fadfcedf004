"""The YAML file of a study."""

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocr_panoptic.analysis.study import Study, System
from ocr_panoptic.bounded_yaml import read_yaml
from ocr_panoptic.engine.config_files import load_config

KEYS = {"config", "opts", "seeds", "baseline", "metrics", "systems", "at"}
OPTIONAL = {"opts", "at"}
# Of a system, whose runs are in a folder of this name.
FOLDER = re.compile(r"[\w,+()=-][\w .,+()=-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class PlacedSystem(System):
    """
    Attributes:
        scheme: its name in the file.
        place: the entry of ``at`` that it is trained at, "" without.
    """

    scheme: str
    place: str


@dataclass(frozen=True)
class PlacedStudy(Study):
    """A study whose systems are called SCHEME, or SCHEME at PLACE."""

    systems: Mapping[str, PlacedSystem]


def read_study(path: Path, baseline: str | None = None) -> PlacedStudy:
    """
    Read a study's YAML file:

        config: of all systems, relative to the file
        opts: [KEY, VALUE, ...]          # of all systems
        seeds: [0, 1, 2]
        baseline: none                   # that the others are compared with
        metrics: [sem_seg/mIoU]
        systems:
          none: {opts: [MODEL.CONTEXT.NAME, none], seeds: [0, 1, 2, 3, 4]}
          other: {config: another.yaml}
          tried: {trial: [script.py, argument]}  # trains in place of train_net.py
        at:                              # optional: each system at each of these places
          layer3: {opts: [MODEL.SEM_SEG_HEAD.IN_FEATURES, "['layer3']"]}
          layer4: {opts: [MODEL.SEM_SEG_HEAD.IN_FEATURES, "['layer4']"]}

    With places the systems are called "other at layer3", and each is compared with the baseline at
    its own place.

    Args:
        baseline: takes the place of the file's.

    Raises:
        FileNotFoundError: no such file, or a config that it names.
        ValueError: what is wrong with it, or with the config of a system.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such study")
    content = read_yaml(path)
    try:
        return _study(content, path.parent, baseline)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _study(content: Any, folder: Path, other: str | None) -> PlacedStudy:
    if not isinstance(content, dict) or set(content) - KEYS or KEYS - OPTIONAL - set(content):
        found = list(content) if isinstance(content, dict) else content
        expected = ", ".join(sorted(KEYS))
        raise ValueError(f"expected the keys {expected}; found {reprlib.repr(found)}")
    schemes = _entries(content, "systems", {"config", "opts", "seeds", "trial"})
    places = _entries(content, "at", {"opts"}) if "at" in content else {"": {}}
    baseline = content["baseline"] if other is None else other
    metrics = _list(content, "metrics")
    if baseline not in list(schemes):
        raise ValueError(f"the baseline {reprlib.repr(baseline)} is none of {list(schemes)}")
    if not metrics or not all(isinstance(m, str) and "/" in m for m in metrics):
        raise ValueError(f"metrics is {reprlib.repr(metrics)}; expected names such as sem_seg/mIoU")
    systems = {}
    for place, added in places.items():
        for scheme, entry in schemes.items():
            name = _name(scheme, place)
            if name in systems:
                raise ValueError(f"two systems are called {name}")
            config, opts = _config(name, [content, entry, added], folder)
            seeds = _seeds(entry if "seeds" in entry else content, name)
            against = _name(baseline, place)
            trial = _trial(entry, name, folder)
            systems[name] = PlacedSystem(
                config, opts, seeds, against, trial, scheme=scheme, place=place
            )
    return PlacedStudy(systems, tuple(metrics))


def _entries(content: Mapping[str, Any], key: str, known: set[str]) -> dict[str, dict[str, Any]]:
    """What a key says of each name; nothing is an empty mapping."""
    if not isinstance(content[key], dict) or not content[key]:
        found, lines = reprlib.repr(content[key]), ", ".join(f"{k}: ..." for k in sorted(known))
        raise ValueError(f"{key} is {found}; expected lines NAME: {{{lines}}}")
    entries = {}
    for name, entry in content[key].items():
        entry = {} if entry is None else entry
        if not isinstance(entry, dict) or set(entry) - known:
            found, may = reprlib.repr(entry), ", ".join(sorted(known))
            raise ValueError(f"{name} of {key} has {found}; it may have {may}")
        entries[name] = entry
    return entries


def _name(scheme: Any, place: Any) -> str:
    """
    Raises:
        ValueError: it is no name of a folder.
    """
    name = f"{scheme} at {place}" if place else scheme
    strings = isinstance(scheme, str) and isinstance(place, str)
    if not strings or not FOLDER.fullmatch(name):
        raise ValueError(
            f"the runs of the system {reprlib.repr(name)} get a folder of its name: use up to 100 "
            "letters, digits, spaces and , . + - = _ ( ), not a . first"
        )
    return name


def _seeds(entry: Mapping[str, Any], name: str) -> tuple[int, ...]:
    seeds = _list(entry, "seeds")
    if not seeds or not all(type(s) is int and s >= 0 for s in seeds) or len({*seeds}) < len(seeds):
        raise ValueError(
            f"seeds of {name} is {reprlib.repr(seeds)}; expected different integers from 0 on"
        )
    return tuple(seeds)


def _trial(entry: Mapping[str, Any], name: str, folder: Path) -> tuple[str, ...]:
    script, *arguments = map(str, _list(entry, "trial") or [""])
    if not script:
        return ()
    file = (folder / script).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"{name} names the trial {file}, which is not there")
    return str(file), *arguments


def _config(
    name: str, entries: Sequence[Mapping[str, Any]], folder: Path
) -> tuple[Path, tuple[str, ...]]:
    """The last config and all overrides of some entries."""
    config = [entry["config"] for entry in entries if "config" in entry][-1]
    if not isinstance(config, str):
        raise ValueError(f"{name} has the config {reprlib.repr(config)}, which is no file name")
    file = (folder / config).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"{name} names the config {file}, which is not there")
    opts = [str(opt) for entry in entries for opt in _list(entry, "opts")]
    try:
        load_config(str(file), opts)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return file, tuple(opts)


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    """A list of the file; no entry is an empty one."""
    found = content.get(key, [])
    if not isinstance(found, list):
        shown = reprlib.repr(found)
        raise ValueError(f"{key} is {shown}; expected a list, such as [{shown}]")
    return found
