"""Read the YAML file of a study."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode

from ocr_panoptic.config.files import load_config, merge_overrides, overrides_of
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import read_yaml
from ocr_panoptic.workbench.comparing.study import Study, System

KEYS = {"config", "opts", "seeds", "baseline", "metrics", "systems", "at"}
OPTIONAL = {"opts", "at"}


@dataclass(frozen=True, kw_only=True)
class PlacedSystem(System):
    """
    A model configuration that a study trains with several seeds.

    If the study file has the key ``at``, each system combines an entry of ``systems`` with an entry
    of ``at``.

    Attributes:
        baseline: name of the system to compare with.
        scheme: name of the entry of ``systems``.
        place: name of the entry of ``at``; "" if the study file has no key ``at``.
    """

    baseline: str
    scheme: str
    place: str


@dataclass(frozen=True)
class PlacedStudy(Study):
    """
    A study whose systems are named "SCHEME" or "SCHEME at PLACE".

    The names have a place if the study file has the key ``at``.
    """

    systems: Mapping[str, PlacedSystem]

    @property
    def schemes(self) -> list[str]:
        return list(dict.fromkeys(system.scheme for system in self.systems.values()))


def read_study(path: Path, baseline: str | None = None) -> PlacedStudy:
    """
    Read a study's YAML file:

        config: CONFIG                   # for all systems, relative to the file
        opts: [KEY, VALUE, ...]          # for all systems
        seeds: [0, 1, 2]
        baseline: none                   # the system that the others are compared with
        metrics: [sem_seg/mIoU]
        systems:
          none: {opts: [MODEL.CONTEXT.NAME, none], seeds: [0, 1, 2, 3, 4]}
          other: {config: another.yaml}
        at:                              # optional: all systems are trained at each place
          layer3: {opts: [MODEL.SEM_SEG_HEAD.IN_FEATURES, "['layer3']"]}
          layer4: {opts: [MODEL.SEM_SEG_HEAD.IN_FEATURES, "['layer4']"]}

    If the file has the key ``at``, the systems are named "other at layer3" and so on, and each is
    compared with the baseline at the same place.

    Args:
        path: the YAML file.
        baseline: name of the entry of ``systems`` that replaces the file's baseline.
    """
    content = read_yaml(path)
    try:
        return _study(content, path.parent, baseline)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _study(content: Any, folder: Path, other: str | None) -> PlacedStudy:
    if set(content) - KEYS or KEYS - OPTIONAL - set(content):
        raise UserError(f"expected the keys {', '.join(sorted(KEYS))}; found {', '.join(content)}")
    schemes = _entries(content, "systems", {"config", "opts", "seeds"})
    places = _entries(content, "at", {"opts"}) if "at" in content else {"": {}}
    baseline = content["baseline"] if other is None else other
    if baseline not in schemes:
        raise UserError(f"the baseline {baseline!r} is none of {list(schemes)}")
    systems = {}
    for place, added in places.items():
        for scheme, entry in schemes.items():
            name = _name(scheme, place)
            config = (folder / entry.get("config", content["config"])).resolve()
            entries = (content, entry, added)
            opts = tuple(str(opt) for settings in entries for opt in settings.get("opts", ()))
            try:
                overridden(config, opts)
            except ValueError as error:
                raise UserError(f"{name}: {error}") from error
            systems[name] = PlacedSystem(
                config=config,
                opts=opts,
                seeds=tuple(entry.get("seeds", content["seeds"])),
                baseline=_name(baseline, place),
                scheme=scheme,
                place=place,
            )
    return PlacedStudy(systems, tuple(content["metrics"]))


def _entries(content: Mapping[str, Any], key: str, known: set[str]) -> dict[str, dict[str, Any]]:
    """Return the settings in each entry below ``key``; only ``known`` settings are allowed."""
    entries = {name: entry or {} for name, entry in content[key].items()}
    for name, entry in entries.items():
        if unknown := set(entry) - known:
            may = ", ".join(sorted(known))
            raise UserError(f"{name} of {key} has {sorted(unknown)}; it may have {may}")
    return entries


def _name(scheme: str, place: str) -> str:
    return f"{scheme} at {place}" if place else scheme


def overridden(config: Path, opts: Sequence[str]) -> CfgNode:
    """Load a config with overrides; a file that was loaded before is not read again."""
    cfg = _loaded(config).clone()
    merge_overrides(cfg, overrides_of(opts))
    return cfg


@functools.cache
def _loaded(config: Path) -> CfgNode:
    return load_config(str(config), [])
