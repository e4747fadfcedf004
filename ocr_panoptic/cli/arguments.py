"""Parse the commands' arguments. The module has no slow imports, so that ``--help`` is fast."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ocr_panoptic.config.keys import KEYS
from ocr_panoptic.errors import UserError, did_you_mean

_AUTO = "--resume-auto"
_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*(=.*)?")


def path(text: str) -> Path:
    """Convert a flag's text to a path, in which a leading ~ becomes the home directory."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; expected a path")
    return Path(text).expanduser()  # a shell does not expand --output=~/x


def positive(text: str) -> int:
    """Convert a flag's text to an integer, which must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text}; expected a number of at least 1")
    return int(text)


@dataclass
class RunOptions:
    """
    What a user asks of a training, an evaluation or a check, on the command line or in Python.

    Attributes:
        config_file: file, name of a packaged config, folder of a run, or "".
        weights: file of trained weights to evaluate; None for those of the run or config.
        data: data files, in place of the config's data sets.
        minutes: length of the training that is planned if no config is named.
        opts: values of config keys, as a dict or as a list KEY, VALUE, KEY, VALUE ...
        resume: whether to continue from the last checkpoint; "auto" starts a run if none exists.
        overwrite: whether to start anew in a folder that has checkpoints of another training.
        eval_only: whether to evaluate without training.
        deterministic: whether results must be repeatable.
        num_gpus, num_machines, machine_rank, dist_url: processes, as for Detectron2's ``launch``.
        imports: modules that every process imports first.
    """

    config_file: str = ""
    weights: str | None = None
    data: list[str] = field(default_factory=list)
    minutes: float | None = None
    opts: Mapping[str, Any] | Sequence[Any] = ()
    resume: bool | Literal["auto"] = False
    overwrite: bool = False
    eval_only: bool = False
    deterministic: bool = False
    num_gpus: int = 1
    num_machines: int = 1
    machine_rank: int = 0
    dist_url: str = f"tcp://127.0.0.1:{2**15 + 2**14 + os.getuid() % 2**14}"  # as in Detectron2
    imports: list[str] = field(default_factory=list)

    def processes(self) -> int:
        """Return the number of processes of the run on all machines."""
        if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started this process
            return int(os.environ["WORLD_SIZE"])
        return self.num_gpus * self.num_machines


class CommandParser(argparse.ArgumentParser):
    """
    An argument parser that suggests a config key or a similar flag for an unknown flag.

    Args:
        description: text of ``--help``.
        options: function that makes the object whose attributes the arguments become.
    """

    def __init__(self, description: str, options: Callable[[], Any] = argparse.Namespace):
        keep_lines = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=keep_lines)
        self.options = options
        self.add_argument(
            "--import",
            dest="imports",
            action="append",
            default=[],
            metavar="MODULE",
            help="Python module with your data sets, context schemes or losses; imported first",
        )

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
                self.error(f"argument {flag}: the value is empty")
            if flag.startswith("--") and not any(name.startswith(flag) for name in known):
                end = flag.replace("--", ".", 1).replace("-", "_").upper()
                keys = [key.name for key in KEYS if key.name.endswith(end)]
                if flag == "--weights":  # a key of Detectron2 that has no row in KEYS
                    keys = ["MODEL.WEIGHTS"]
                takes_keys = any(action.dest == "opts" for action in self._actions)
                hint = did_you_mean(flag, known)
                if takes_keys and len(keys) == 1:
                    hint = f" Set the config key {keys[0]} at the end of the command."
                self.error(f"{flag}: no such flag.{hint}")
        namespace = self.options() if namespace is None else namespace
        found, rest = super().parse_known_args(words, namespace)
        data = getattr(found, "data", [])
        files = next((i for i, word in enumerate(data) if _KEY.fullmatch(word)), None)
        if files is not None and hasattr(found, "opts"):
            found.data, found.opts = data[:files], data[files:] + found.opts
            if not found.data:
                self.error("argument --data: expected at least one file")
        if getattr(found, "resume", False) and found.overwrite:
            self.error("--resume continues a run; --overwrite starts a new one. Choose one.")
        return found, rest

    def add_data(self) -> None:
        """Add ``--data FILE ...``; the list of files ends before the first config key."""
        self.add_argument(
            "--data",
            nargs="+",
            action="extend",
            default=[],
            metavar="FILE",
            help="data files (see datasets/README.md), instead of DATASETS.TRAIN and DATASETS.TEST",
        )

    def add_minutes(self) -> None:
        """Add ``--minutes N``, the length of a planned training."""
        self.add_argument(
            "--minutes", type=float, help="plan a training that takes this many minutes"
        )

    def add_opts(self) -> None:
        """Add the arguments KEY VALUE ..., which end the command line and override the config."""
        self.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and their new values")

    def add_weights(self) -> None:
        """Add ``--weights``, the flag that names a trained model."""
        default = "default: the last checkpoint in the folder of --config-file"
        self.add_argument("--weights", help=f"weights of the trained model ({default})")

    def add_model(self) -> None:
        """Add the flags that name a trained model, and KEY VALUE ... for its config."""
        named = "folder of a run, or a config file"
        self.add_argument("--config-file", default="", metavar="RUN", help=named)
        self.add_weights()
        self.add_opts()

    def add_run(self, *, can_train: bool = True) -> None:
        """Add the flags for training and evaluation; without ``can_train``, only for evaluation."""
        names = "config file, name listed by `ocr-panoptic configs`, or folder of a run"
        self.add_argument("--config-file", default="", metavar="CONFIG", help=names)
        self.add_data()
        if can_train:
            self.add_argument(
                "--resume",
                action="store_true",
                help="continue from the last checkpoint; --resume auto starts a run if none exists",
            )
            self.add_argument(
                _AUTO, dest="resume", action="store_const", const="auto", help=argparse.SUPPRESS
            )
            for flag, meaning in (
                (
                    "--overwrite",
                    "start a new run, even if OUTPUT_DIR has checkpoints of another run",
                ),
                ("--eval-only", "evaluate without training"),
                ("--deterministic", "make results repeatable with the same SEED; slower on a GPU"),
            ):
                self.add_argument(flag, action="store_true", help=meaning)
        self.add_argument("--num-gpus", type=positive, help="processes per machine, one per GPU")
        self.add_argument("--num-machines", type=positive, help="number of machines")
        self.add_argument("--machine-rank", type=int, help="index of this machine, from 0")
        address = "address through which the machines connect, tcp://HOST:PORT"
        self.add_argument("--dist-url", help=address)
        self.add_opts()


def check_model_is_named(args: argparse.Namespace | RunOptions) -> None:
    """Refuse a command line that names neither a run nor weights."""
    if not (args.config_file or args.weights):
        raise UserError(
            "No trained model is named. Name the folder of its run (--config-file) or its weights "
            "(--weights)."
        )


def check_config_is_named(options: RunOptions) -> None:
    """Refuse a training without a config, or an evaluation without a trained model."""
    if options.eval_only:
        return check_model_is_named(options)
    if not (options.config_file or "MODEL.META_ARCHITECTURE" in options.opts):
        raise UserError(
            "No config is named. Name one with --config-file (`ocr-panoptic configs` lists them), "
            "or let `ocr-panoptic train --data FILE` plan a training from your data."
        )


def import_modules(names: Sequence[str]) -> None:
    """Import modules that the user has named with --import, also from the current folder."""
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if name.startswith(".") or "/" in name:
            raise UserError(f"--import {name}: expected the name of a module, not a path.")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # the module itself imports a package that is missing
            raise UserError(
                f"--import {name}: the module is neither in {os.getcwd()} nor installed. Give its "
                "name without .py, and run the command in the module's folder."
            ) from error
