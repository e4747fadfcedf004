"""Parse the commands' arguments. The module has no slow imports, so that ``--help`` is fast."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_panoptic.config.keys import KEYS
from ocr_panoptic.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fvcore.common.config import CfgNode

_AUTO = "--resume-auto"
_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*(=.*)?")


def path(text: str) -> Path:
    """Convert a flag's text to a path, in which a leading ~ becomes the home directory."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; expected a path")
    return Path(text).expanduser()  # a shell does not expand --output=~/x


def positive(text: str) -> int:
    """Convert a flag's text to an integer, which must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; expected a number of at least 1")
    return int(text)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that suggests a config key or a similar flag for an unknown flag."""

    def __init__(self, description: str):
        keep_lines = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=keep_lines)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if "--resume" in words:  # with an optional value, the flag would take the first KEY
            i = words.index("--resume")
            if words[i + 1 : i + 2] == ["auto"]:
                words[i : i + 2] = [_AUTO]
        known = self._option_string_actions
        for word, after in zip(words, [*words[1:], None]):
            flag, given, value = word.partition("=")
            if flag in known and (after == "" or (given and not value)):
                self.error(f"argument {flag}: is empty")
            if flag.startswith("--") and not any(name.startswith(flag) for name in known):
                end = flag.replace("--", ".", 1).replace("-", "_").upper()
                keys = [key.name for key in KEYS if key.name.endswith(end)]
                if flag == "--weights":  # a key of Detectron2 that has no row in KEYS
                    keys = ["MODEL.WEIGHTS"]
                takes_keys = any(action.dest == "opts" for action in self._actions)
                is_clear = takes_keys and len(keys) == 1
                hint = f" Set {keys[0]} at the end." if is_clear else did_you_mean(flag, known)
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
        """Add ``--data FILE ...``; the list of files ends before the first config key."""
        self.add_argument(
            "--data",
            nargs="+",
            action="extend",
            default=[],
            metavar="FILE",
            help="data files (datasets/README.md), in place of DATASETS.TRAIN and DATASETS.TEST",
        )

    def add_opts(self) -> None:
        """Add the arguments KEY VALUE ..., which end the command line and override the config."""
        self.add_argument("opts", nargs=argparse.REMAINDER, help="keys of the config, with values")

    def add_weights(self) -> None:
        """Add ``--weights``, the flag that names a trained model."""
        default = "default: the last checkpoint in the folder of --config-file"
        self.add_argument("--weights", help=f"trained model ({default})")

    def add_model(self) -> None:
        """Add the flags that name a trained model, and KEY VALUE ... for its config."""
        named = "folder of a run, or a config"
        self.add_argument("--config-file", default="", metavar="RUN", help=named)
        self.add_weights()
        self.add_opts()

    def add_run(self, *, can_train: bool = True) -> None:
        """Add the flags for training and evaluation; without ``can_train``, only for evaluation."""
        names = "file, name listed by `ocr-panoptic configs`, or folder of a run"
        self.add_argument("--config-file", default="", metavar="CONFIG", help=names)
        self.add_data()
        self.set_defaults(eval_only=not can_train)
        self.set_defaults(resume=False, overwrite=False, deterministic=False)
        if can_train:
            self.add_argument(
                "--resume",
                action="store_true",
                help="go on after the last checkpoint; --resume auto starts a run if none exists",
            )
            self.add_argument(
                _AUTO, dest="resume", action="store_const", const="auto", help=argparse.SUPPRESS
            )
            for flag, meaning in (
                ("--overwrite", "start anew in an OUTPUT_DIR that has checkpoints of another run"),
                ("--eval-only", "evaluate without training"),
                ("--deterministic", "repeatable results from the config's SEED; slower on a GPU"),
            ):
                self.add_argument(flag, action="store_true", help=meaning)
        self.add_argument("--num-gpus", type=positive, default=1, help="processes on this machine")
        self.add_argument("--num-machines", type=positive, default=1)
        self.add_argument("--machine-rank", type=int, default=0, help="from 0")
        self.add_argument(
            "--dist-url",
            default=f"tcp://127.0.0.1:{2**15 + 2**14 + os.getuid() % 2**14}",  # as in Detectron2
            help="address at which several machines meet: tcp://ADDRESS:PORT",
        )
        self.add_opts()


def check_arguments(args: argparse.Namespace) -> "CfgNode":
    """
    Refuse unusable configs, data files, weights, keys and values before PyTorch is imported.

    Returns:
        the config, still without the values that depend on the data and the machine
    """
    from ocr_panoptic.config.files import are_weights, default_config, merge_file, merge_options
    from ocr_panoptic.config.keys import check_values
    from ocr_panoptic.data.data_file import data_options

    cfg, config, weights = default_config(), args.config_file or "", getattr(args, "weights", None)
    if hasattr(args, "weights") and not weights:
        if not config:
            raise UserError(
                "Name a trained model: the folder of its run (--config-file) or its weights "
                "(--weights)."
            )
        if are_weights(config):
            config, weights = "", config  # the weights hold the settings
    merge_file(cfg, config)
    merge_options(cfg, [*data_options(getattr(args, "data", ())), *args.opts])
    if config or not weights:  # otherwise the weights hold the other settings
        check_values(cfg, registries=False)
    check_weights(weights or "")
    return cfg


def check_weights(weights: str) -> None:
    """Refuse weights that are neither a URL nor an existing file; "" is allowed."""
    from ocr_panoptic.config.files import check_weights_file

    if weights and "://" not in weights:
        check_weights_file(weights)
