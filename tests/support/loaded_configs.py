"""
The project's config files, each loaded once for all tests.

    python -m tests.support.loaded_configs      rewrites tests/resolved_configs.yaml
"""

import functools
import json
from typing import Any

import yaml
from detectron2.config import CfgNode, get_cfg

from ocr_panoptic import add_ocr_config
from ocr_panoptic.config.files import config_names, load_config

from .tiny_runs import CONFIGS, ROOT

RESOLVED = ROOT / "tests/resolved_configs.yaml"

NAMES = config_names()


@functools.cache
def load(file: str, *opts: str) -> CfgNode:
    cfg = load_config(str(CONFIGS / f"{file}.yaml"), list(opts))
    cfg.MODEL.DEVICE = default_config().MODEL.DEVICE  # it follows the machine
    cfg.freeze()
    return cfg


def differences(a: CfgNode, b: CfgNode, prefix: str = "") -> dict[str, tuple]:
    """Return the keys whose values differ, mapped to (value in a, value in b); None if absent."""
    found = {}
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        if isinstance(x, CfgNode) and isinstance(y, CfgNode):
            found.update(differences(x, y, f"{prefix}{key}."))
        elif x != y:
            found[prefix + key] = (x, y)
    return found


@functools.cache
def default_config() -> CfgNode:
    default = get_cfg()
    add_ocr_config(default)
    return default


def resolved(name: str) -> dict[str, Any]:
    """Return the values of a config that differ from the defaults, by key; tuples become lists."""
    changed = differences(load(name), default_config())
    return json.loads(json.dumps({key: changed[key][0] for key in sorted(changed)}))


if __name__ == "__main__":
    lines = ["# python -m tests.support.loaded_configs writes this file."]
    for name in NAMES:
        lines.append(f"{name}:")
        for key, value in resolved(name).items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
            lines.append(f"  {key}: {text.removesuffix('...' + chr(10)).strip()}")
    RESOLVED.write_text("\n".join(lines) + "\n")
