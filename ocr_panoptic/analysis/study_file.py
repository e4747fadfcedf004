"""The YAML file of a study."""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocr_panoptic.bounded_yaml import read_yaml
from ocr_panoptic.engine.config_files import load_config

KEYS = {"config", "opts", "seeds", "baseline", "metrics", "systems"}
# Of a system, whose runs are in a folder of this name.
FOLDER = re.compile(r"[\w,+()=-][\w .,+()=-]{0,99}")


@dataclass(frozen=True)
class Study:
    """
    Attributes:
        systems: name -> (config file, KEY VALUE overrides).
        seeds: each system is trained once with each.
        baseline: the system that the others are compared with.
        metrics: "task/metric" as in an evaluation's metrics.json; the first one is plotted.
    """

    systems: dict[str, tuple[Path, tuple[str, ...]]]
    seeds: tuple[int, ...]
    baseline: str
    metrics: tuple[str, ...]


def read_study(path: Path) -> Study:
    """
    Read a study's YAML file:

        config: of all systems, relative to the file
        opts: [KEY, VALUE, ...]          # of all systems
        seeds: [0, 1, 2]
        baseline: none
        metrics: [sem_seg/mIoU]
        systems:
          none: {opts: [MODEL.CONTEXT.NAME, none]}
          other: {config: another.yaml}

    Raises:
        FileNotFoundError: no such file, or a config that it names.
        ValueError: what is wrong with it, or with the config of a system.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such study")
    content = read_yaml(path)
    try:
        return _study(content, path.parent)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _study(content: Any, folder: Path) -> Study:
    if not isinstance(content, dict) or set(content) - KEYS or KEYS - {"opts"} - set(content):
        found = list(content) if isinstance(content, dict) else content
        expected = ", ".join(sorted(KEYS))
        raise ValueError(f"expected the keys {expected}; found {reprlib.repr(found)}")
    if not isinstance(content["systems"], dict):
        found = reprlib.repr(content["systems"])
        raise ValueError(f"systems is {found}; expected lines NAME: {{config: FILE, opts: [...]}}")
    systems = {
        name: _system(name, system, content, folder) for name, system in content["systems"].items()
    }
    baseline, seeds, metrics = (
        content["baseline"],
        _list(content, "seeds"),
        _list(content, "metrics"),
    )
    if baseline not in list(systems):
        raise ValueError(f"the baseline {reprlib.repr(baseline)} is none of {list(systems)}")
    if not seeds or not all(type(s) is int and s >= 0 for s in seeds) or len({*seeds}) < len(seeds):
        raise ValueError(f"seeds is {reprlib.repr(seeds)}; expected different integers from 0 on")
    if not metrics or not all(isinstance(m, str) and "/" in m for m in metrics):
        raise ValueError(f"metrics is {reprlib.repr(metrics)}; expected names such as sem_seg/mIoU")
    return Study(systems, tuple(seeds), baseline, tuple(metrics))


def _system(
    name: Any, system: Any, content: Mapping[str, Any], folder: Path
) -> tuple[Path, tuple[str, ...]]:
    if not isinstance(name, str) or not FOLDER.fullmatch(name):
        raise ValueError(
            f"the runs of the system {reprlib.repr(name)} get a folder of its name: use up to 100 "
            "letters, digits, spaces and , . + - = _ ( ), not a . first"
        )
    system = {} if system is None else system
    if not isinstance(system, dict) or set(system) - {"config", "opts"}:
        raise ValueError(f"{name} has {reprlib.repr(system)}; it may have config and opts")
    config = system.get("config", content["config"])
    if not isinstance(config, str):
        raise ValueError(f"{name} has the config {reprlib.repr(config)}, which is no file name")
    file = (folder / config).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"{name} names the config {file}, which is not there")
    opts = [str(opt) for opt in (*_list(content, "opts"), *_list(system, "opts"))]
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
