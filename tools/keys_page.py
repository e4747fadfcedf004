#!/usr/bin/env python
"""
Print the page docs/keys.md, which describes the config keys of this project.

    python tools/keys_page.py > docs/keys.md
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from detectron2.config import get_cfg

from ocr_panoptic import add_ocr_config
from ocr_panoptic.config.keys import SECTIONS, Key
from ocr_panoptic.config.rules import value_of
from ocr_panoptic.config.unread import conditions

HEADING = """\
# The keys of a config

For those who write a config or `KEY VALUE` on the command line: which keys are there besides [Detectron2's](https://detectron2.readthedocs.io/en/latest/modules/config.html#yaml-config-references), and how does each work?

Each key has its default. Keys under "With ..." are read only with that setting, and refused elsewhere; a refined head is OCRSemSegFPNHead or ContextSemSegHead, a panoptic model PanopticSegmentor or PanopticFPN. A wrong value is refused with the values that are allowed. Of Detectron2's keys, `SOLVER.MAX_ITER 0` takes the number of iterations from `SOLVER.EPOCHS`, `SOLVER.STEPS` may be shares of it, `TEST.EVAL_PERIOD 0` follows `TEST.EVALUATIONS`, and `SOLVER.LR_SCHEDULER_NAME` may be `WarmupPolyLR`.
"""  # noqa: E501
# Conditions of many keys -> their name on the page, which HEADING explains.
SHORT = {
    "MODEL.SEM_SEG_HEAD.NAME OCRSemSegFPNHead or ContextSemSegHead": "a refined head",
    "MODEL.META_ARCHITECTURE PanopticSegmentor or PanopticFPN": "a panoptic model",
    "MODEL.BACKBONE.NAME build_timm_backbone, build_timm_fpn_backbone or "
    "build_timm_simple_fpn_backbone": "a timm backbone",
}


def keys_page() -> str:
    """Return the page; each line describes a key."""
    return "\n".join([HEADING, *_lines()])


def _lines() -> Iterator[str]:
    cfg = get_cfg()
    add_ocr_config(cfg)
    for title, keys in SECTIONS.items():
        groups: dict[str, list[Key]] = {"": []}  # condition -> keys; keys without one come first
        for key in keys:
            if key.sentence:  # Detectron2's documentation describes the others
                groups.setdefault(_read_with(key), []).append(key)
        if any(groups.values()):
            yield f"## {_linked(title)}\n"
        for settings, group in groups.items():
            if settings:
                yield f"With {settings}:\n"
            for key in group:
                yield f"- `{key.name} {value_of(cfg, key.name)!r}`: {_text(key)}"
            if group:
                yield ""


def _read_with(key: Key) -> str:
    texts = [condition.text for condition in conditions(key)]
    return ", and ".join(SHORT.get(text, text) for text in texts)


def _text(key: Key) -> str:
    """Return a key's sentence and the allowed names, or what the number 0 means."""
    rule, sentence = key.allowed.text(), key.sentence
    shown = ""
    if zero := re.search(r"\((0 .*)\)", rule):
        shown = zero[1]
    elif rule.startswith(("one of ", "a list of ", "auto")) and not re.search(
        "numbers|naiveSyncBN", rule
    ):
        values = rule.removeprefix("one of ").split(", ")
        if not all(re.search(rf"(?<!\w){re.escape(v)}(?!\w)", sentence) for v in values):
            shown = rule
    return _linked(sentence) + (f" *{shown}*" if shown else "")


def _linked(text: str) -> str:
    """Turn the paths of Markdown pages in a text, relative to the repository, into links."""
    return re.sub(r"(?:\w+/)+(\w+\.md)", _link, text)


def _link(match: re.Match) -> str:
    return f"[{match[1]}]({os.path.relpath(match[0], 'docs')})"


def main(argv: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(argv)
    print(keys_page().rstrip())


if __name__ == "__main__":
    main()
