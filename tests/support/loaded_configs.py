"""The project's config files, loaded once for all tests about them."""

import functools
from pathlib import Path

from detectron2.config import CfgNode

from ocr_panoptic.engine import load_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

# Every config but the fragments, by its path below configs/ without the suffix.
NAMES = sorted(
    str(path.relative_to(CONFIGS).with_suffix(""))
    for path in CONFIGS.rglob("*.yaml")
    if not path.name.startswith("Base-")
)


@functools.cache
def load(file: str, *opts: str) -> CfgNode:
    """
    Args:
        file: one of ``NAMES``.
        opts: KEY VALUE ...

    Returns:
        the frozen config; ``clone()`` and ``defrost()`` it to change it.
    """
    cfg = load_config(str(CONFIGS / f"{file}.yaml"), list(opts))
    cfg.freeze()
    return cfg


def differences(a: CfgNode, b: CfgNode, prefix: str = "") -> dict[str, tuple]:
    """The keys that differ, each with its value in a and in b, None where it is absent."""
    found = {}
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        if isinstance(x, CfgNode) and isinstance(y, CfgNode):
            found.update(differences(x, y, f"{prefix}{key}."))
        elif x != y:
            found[prefix + key] = (x, y)
    return found
