"""
The program ``ocr-panoptic``, with a module for each command.

A command's module has the functions ``argument_parser()`` and ``run(args)``; ``run`` returns an
exit status or None. Slow imports are inside ``run``, so that ``--help`` is fast.
"""

import argparse
import importlib
import keyword
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from ocr_panoptic import __version__
from ocr_panoptic.errors import did_you_mean
from ocr_panoptic.program import run_program

from .arguments import import_modules

PROGRAM = "ocr-panoptic"
COMMANDS = {
    "train": "train a model",
    "plan": "plan a training run for your data",
    "evaluate": "evaluate a trained model on annotated data",
    "predict": "segment images or a video, and save the results",
    "check": "check data files, or a training before it starts",
    "view": "write an HTML page about a data set",
    "import": "import annotations from another format",
    "convert": "convert published weights",
    "export": "export a trained model as an ONNX file",
    "report": "write an HTML page about a run",
    "regions": "measure the soft object regions of a trained model",
    "refine": "refine label PNGs with SegFix",
    "fit-merge": "fit the panoptic merging rules to annotated data",
    "compare": "train several heads on your data, and report which is best",
    "configs": "list the configs that come with the package",
    "models": "list the published models that can be used by name",
}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run ``ocr-panoptic COMMAND ...``, and exit with the command's status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        run_command(words[0], words[1:], f"{PROGRAM} {words[0]}")
    listed = "\n".join(f"  {name:9}  {task}" for name, task in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Object-contextual representations (OCR) for panoptic and semantic "
        "segmentation.",
        epilog=f"commands:\n{listed}\n\n{PROGRAM} COMMAND --help describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{PROGRAM} [-h] COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    command = parser.parse_args(words[:1]).command
    if command is None:
        parser.print_help()
        sys.exit()
    parser.error(f"{command}: no such command.{did_you_mean(command, COMMANDS)}")


def run_command(name: str, argv: Sequence[str], program: str | None = None) -> NoReturn:
    """
    Run a command, and exit with the command's status.

    Args:
        name: name of the command, such as "train".
        argv: arguments of the command.
        program: program name for ``--help`` and error messages; by default the script's file name.
    """
    module = _module(name)
    parser = module.argument_parser()
    parser.prog = program or parser.prog
    sys.exit(run_program(_run, module, parser.parse_args(argv)))


def call(name: str, argv: Sequence[str]) -> Any:
    """Run a command without ending this process; return the result of the command's ``run``."""
    module = _module(name)
    return _run(module, module.argument_parser().parse_args(argv))


def _run(module: ModuleType, args: Any) -> Any:
    import_modules(args.imports)
    return module.run(args)


def _module(command: str) -> ModuleType:
    name = f"{command}_" if keyword.iskeyword(command) else command.replace("-", "_")
    return importlib.import_module(f"{__name__}.{name}")
