"""Detectron2's command line, with ``--resume auto``."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from detectron2.engine import default_argument_parser

_AUTO = "--resume-auto"


class TrainingArguments(argparse.ArgumentParser):
    """
    Parses Detectron2's flags. ``args.resume`` is True for ``--resume``, "auto" for ``--resume
    auto``, else False.

    An optional value of ``--resume`` would take the first KEY of the overrides, so the two words
    are one to the parser.
    """

    def __init__(self):
        default = default_argument_parser()
        super().__init__(
            parents=[default],
            add_help=False,
            conflict_handler="resolve",
            epilog=default.epilog,
            formatter_class=default.formatter_class,
        )
        self.add_argument(
            "--resume",
            action="store_true",
            help="go on after the last checkpoint of OUTPUT_DIR; --resume auto: or start, where "
            "there is none",
        )
        self.add_argument(
            _AUTO, dest="resume", action="store_const", const="auto", help=argparse.SUPPRESS
        )

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        for i in range(len(words) - 1):
            if words[i : i + 2] == ["--resume", "auto"]:
                words[i : i + 2] = [_AUTO]
                break
        return super().parse_known_args(words, namespace)
