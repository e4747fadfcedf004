"""
The project's config files, each loaded once for all tests.

    python -m tests.support.loaded_configs      rewrites tests/resolved_configs.yaml
"""

import functools
from pathlib import Path
from typing import Any

import yaml
from detectron2.config import CfgNode, get_cfg

from ocr_panoptic import add_ocr_config
from ocr_panoptic.engine import load_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RESOLVED = Path(__file__).resolve().parents[1] / "resolved_configs.yaml"

# Every config except the fragments, by its path below configs/ without the suffix.
NAMES = sorted(
    str(path.relative_to(CONFIGS).with_suffix(""))
    for path in CONFIGS.rglob("*.yaml")
    if not path.name.startswith("Base-")
)


@functools.cache
def load(file: str, *opts: str) -> CfgNode:
    """
    Load a config.

    Args:
        file: a name in ``NAMES``.
        opts: overrides KEY VALUE ...

    Returns:
        frozen config; ``clone()`` and ``defrost()`` it to change it
    """
    cfg = load_config(str(CONFIGS / f"{file}.yaml"), list(opts))
    cfg.freeze()
    return cfg


def differences(a: CfgNode, b: CfgNode, prefix: str = "") -> dict[str, tuple]:
    """Return the differing keys with their values in a and b; None for an absent key."""
    found = {}
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        if isinstance(x, CfgNode) and isinstance(y, CfgNode):
            found.update(differences(x, y, f"{prefix}{key}."))
        elif x != y:
            found[prefix + key] = (x, y)
    return found


@functools.cache
def _defaults() -> CfgNode:
    default = get_cfg()
    add_ocr_config(default)
    return default


def resolved(name: str) -> dict[str, Any]:
    """Return the values of a config that differ from the defaults, by key, as in YAML."""
    changed = differences(load(name), _defaults())
    return yaml.safe_load(yaml.safe_dump({key: _plain(changed[key][0]) for key in sorted(changed)}))


def _plain(value: Any) -> Any:
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def write_resolved() -> None:
    lines = ["# python -m tests.support.loaded_configs writes this file."]
    for name in NAMES:
        lines.append(f"{name}:")
        for key, value in resolved(name).items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
            lines.append(f"  {key}: {text.removesuffix('...' + chr(10)).strip()}")
    RESOLVED.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_resolved()
