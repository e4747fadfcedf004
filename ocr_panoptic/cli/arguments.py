"""Parsers of the commands. This module has no slow imports, so that ``--help`` is fast."""

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_panoptic.config import KEYS
from ocr_panoptic.errors import did_you_mean

_AUTO = "--resume-auto"
_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*(=.*)?")


def path(text: str) -> Path:
    """Return a flag's path, with ~ expanded: a shell does not expand it in --output=~/x."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; expected a path")
    return Path(text).expanduser()


def positive(text: str) -> int:
    """Return a flag's number, which must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; expected a number of at least 1")
    return int(text)


class CommandParser(argparse.ArgumentParser):
    """
    A parser that suggests the nearest known flag for an unknown flag.

    Args:
        description: description of the command, shown with its line breaks.
        fault: function that returns why the arguments do not fit together, or "".
    """

    def __init__(self, description: str, fault: Callable[[argparse.Namespace], str] | None = None):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self._fault = fault
        self._needs_model = False

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found = super().parse_args(args, namespace)
        if self._needs_model and not (found.config_file or found.weights):
            self.error(
                "name a trained model: the folder of its run (--config-file) or its weights "
                "(--weights)"
            )
        if self._fault and (fault := self._fault(found)):
            self.error(fault)
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        known = self._option_string_actions
        for word, after in zip(words, [*words[1:], None]):
            flag, given, value = word.partition("=")
            if flag in known and (after == "" or (given and not value)):
                self.error(f"argument {flag}: is empty")
            if flag.startswith("--") and not any(name.startswith(flag) for name in known):
                end = flag.replace("--", ".", 1).replace("-", "_").upper()
                keys = [key.name for key in KEYS if key.name.endswith(end)]
                is_key = keys and any(action.dest == "opts" for action in self._actions)
                hint = f" Set {keys[0]} at the end." if is_key else did_you_mean(flag, known)
                self.error(f"{flag}: no such flag.{hint}")
        found, rest = super().parse_known_args(words, namespace)
        data = getattr(found, "data", [])
        files = next((i for i, word in enumerate(data) if _KEY.fullmatch(word)), None)
        if files is not None and hasattr(found, "opts"):
            found.data, found.opts = data[:files], data[files:] + found.opts
            if not found.data:
                self.error("argument --data: expected at least one file")
        return found, rest

    def add_data(self) -> None:
        """Add ``--data``; the first KEY after the files begins ``args.opts``."""
        self.add_argument(
            "--data",
            nargs="+",
            action="extend",
            default=[],
            metavar="FILE",
            help="files that describe your data (datasets/README.md), in place of DATASETS.TRAIN "
            "and DATASETS.TEST",
        )

    def add_opts(self) -> None:
        """Add the arguments KEY VALUE ... at the end of the line, for keys of the config."""
        self.add_argument(
            "opts", nargs=argparse.REMAINDER, help="keys of the config and their values"
        )

    def add_weights(self) -> None:
        """Add the flag that names a trained model."""
        self.add_argument(
            "--weights",
            help="trained model, which holds its settings and classes (default: the last "
            "checkpoint in the folder given as --config-file)",
        )

    def add_model(self) -> None:
        """Add the flags that name a trained model, and KEY VALUE ... of its config."""
        self.add_argument(
            "--config-file", default="", metavar="RUN", help="folder of a run, or a config"
        )
        self.add_weights()
        self.add_opts()
        self._needs_model = True


class TrainingArguments(CommandParser):
    """
    Detectron2's flags and this project's flags.

    ``args.resume`` is True for ``--resume``, "auto" for ``--resume auto``, else False; and
    ``args.data`` is a list of data files.

    If ``--resume`` had an optional value, it would take the first KEY of the overrides. So the
    parser joins the words ``--resume auto`` into a hidden flag.
    """

    def __init__(
        self,
        description: str,
        fault: Callable[[argparse.Namespace], str] | None = None,
        *,
        can_train: bool = True,
    ):
        super().__init__(description, fault)
        self.add_argument(
            "--config-file",
            default="",
            metavar="CONFIG",
            help="file, name listed by `ocr-panoptic configs`, or folder of a run",
        )
        self.add_data()
        self.set_defaults(
            eval_only=not can_train, resume=False, overwrite=False, deterministic=False
        )
        if can_train:
            self._add_training()
        self.add_argument(
            "--num-gpus",
            type=positive,
            default=1,
            help="processes on this machine, each with a GPU",
        )
        self.add_argument("--num-machines", type=positive, default=1)
        self.add_argument(
            "--machine-rank", type=int, default=0, help="number of this machine, from 0"
        )
        self.add_argument(
            "--dist-url",
            default=f"tcp://127.0.0.1:{2**15 + 2**14 + os.getuid() % 2**14}",  # as Detectron2
            help="address at which several machines meet: tcp://ADDRESS:PORT",
        )
        self.add_opts()

    def _add_training(self) -> None:
        self.add_argument(
            "--resume",
            action="store_true",
            help="go on after the last checkpoint of OUTPUT_DIR; --resume auto starts a run "
            "if there is no checkpoint",
        )
        self.add_argument(
            _AUTO, dest="resume", action="store_const", const="auto", help=argparse.SUPPRESS
        )
        self.add_argument(
            "--overwrite",
            action="store_true",
            help="start a new run in an OUTPUT_DIR that has checkpoints of another run",
        )
        self.add_argument("--eval-only", action="store_true", help="evaluate without training")
        self.add_argument(
            "--deterministic",
            action="store_true",
            help="repeatable results on this machine from the config's SEED; slower on a GPU",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        for i in range(len(words) - 1):
            if words[i : i + 2] == ["--resume", "auto"]:
                words[i : i + 2] = [_AUTO]
                break
        return super().parse_known_args(words, namespace)


if TYPE_CHECKING:
    from fvcore.common.config import CfgNode


def check_arguments(args: argparse.Namespace) -> "CfgNode":
    """
    Refuse an unusable config, data file, weights, key or value before PyTorch is imported.

    Some faults cannot be found without PyTorch; the command itself checks again.

    Args:
        args: arguments of a command that takes KEY VALUE ...

    Returns:
        the config before it is completed
    """
    from ocr_panoptic.config import check_values
    from ocr_panoptic.data.data_file import data_options
    from ocr_panoptic.formats.config_files import (
        are_weights,
        default_config,
        merge_file,
        merge_options,
    )

    cfg, config, weights = default_config(), args.config_file or "", getattr(args, "weights", None)
    if not weights and hasattr(args, "weights") and are_weights(config):
        config, weights = "", config  # the weights hold the settings
    merge_file(cfg, config)
    merge_options(cfg, [*data_options(getattr(args, "data", ())), *args.opts])
    if config or not weights:  # otherwise the weights hold the other settings
        check_values(cfg, registries=False)
    check_weights(weights or "")
    return cfg


def check_weights(weights: str) -> None:
    """Refuse weights that are neither an address nor an existing file; "" passes."""
    from ocr_panoptic.formats.config_files import check_weights_file

    if weights and "://" not in weights:
        check_weights_file(weights)
