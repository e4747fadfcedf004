"""Read config files and command-line overrides, without importing PyTorch."""

import importlib.util
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from fvcore.common.config import CfgNode

from ocr_panoptic.errors import MissingFileError, UserError, did_you_mean
from ocr_panoptic.formats.files import read_yaml
from ocr_panoptic.formats.run_folder import CONFIG

from .keys import add_ocr_config
from .names import SUFFIX, config_names, config_path

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"[+-]?(\d+|inf|infinity|nan)", re.IGNORECASE)
WEIGHTS = (".pth", ".pkl", ".safetensors", ".onnx")


class _ConfigFile(CfgNode):
    """A ``CfgNode`` that refuses to load URLs and YAML files with repeated keys."""

    @classmethod
    def _open_cfg(cls, filename: str) -> IO[str]:
        if "://" in filename:
            raise UserError(f"The config {filename:.200} is an address; download the file first.")
        if not os.path.isfile(filename):
            raise MissingFileError(f"The config file {os.path.abspath(filename)} does not exist.")
        if not isinstance(read_yaml(filename), dict):
            raise UserError(f"The config file {filename} needs lines of the form KEY: VALUE.")
        return open(filename, encoding="utf-8")


def default_config() -> CfgNode:
    """Return the default config, read from Detectron2's source without importing Detectron2."""
    spec = importlib.util.find_spec("detectron2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'detectron2'", name="detectron2")
    file = Path(spec.origin).parent / "config/defaults.py"
    found = {"CN": CfgNode}
    exec(file.read_text(encoding="utf-8").replace("from .config import", "# "), found)
    add_ocr_config(found["_C"])
    return found["_C"]


def merge_file(cfg: CfgNode, config_file: str, settings: Mapping[str, Any] | None = None) -> None:
    """
    Merge a checkpoint's settings and then a config file into the default config ``cfg``.

    Args:
        config_file: path or name of a config, or the folder of a run; "" merges no file.
        settings: values of config keys in a checkpoint; unknown keys are skipped with a warning.
    """
    if settings:
        known = values_by_key(cfg)
        if foreign := [key for key in settings if key not in known]:
            logger.warning("The checkpoint's keys of another version are left out: %s", foreign)
        own = {key: value for key, value in settings.items() if key in known}
        _merge(cfg, own, " in the checkpoint")
    if config_file:
        file = find_config(config_file)
        try:
            content = values_by_key(_ConfigFile.load_yaml_with_base(file))
        except (AssertionError, AttributeError, RecursionError, UserError) as e:
            if isinstance(e, UserError) and not isinstance(e.__cause__, RecursionError):
                raise
            raise UserError(f"{file}: its _BASE_ cannot be read ({str(e) or type(e)})") from e
        _merge(cfg, content, f" in {file}")


def merge_options(cfg: CfgNode, opts: Sequence[Any]) -> None:
    """Merge overrides [KEY, VALUE, KEY, VALUE, ...] into a config."""
    if flags := [opt for opt in map(str, opts) if opt.startswith("--")]:
        raise UserError(f"{' '.join(flags)}: flags stand before the first KEY VALUE")
    if joined := [opt for opt in map(str, opts[::2]) if re.match(r"[A-Z][\w.]*=", opt)]:
        raise UserError(f"{joined[0]:.100}: a KEY and its VALUE are two words, without =")
    if len(opts) % 2:
        raise UserError(f"Overrides come as KEY VALUE pairs, but these are {len(opts)}: {opts}")
    _merge(cfg, dict(zip(opts[::2], opts[1::2])))
    cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS = map(os.path.expanduser, (cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS))


def are_weights(name: str) -> bool:
    """Return whether a file name has the suffix of a weights file, such as ".pth"."""
    return name.endswith(WEIGHTS)


def check_weights_file(path: str) -> None:
    """Raise MissingFileError unless ``path`` is a file."""
    if not os.path.isfile(path):
        what = "are not a file" if os.path.exists(path) else "do not exist"
        raise MissingFileError(
            f"The weights {path} {what}. Name a checkpoint file; training with MODEL.WEIGHTS "
            '"" starts from random ones.'
        )


def _merge(cfg: CfgNode, values: Mapping[str, Any], place: str = "") -> None:
    known = values_by_key(cfg)
    for key, value in values.items():
        if cfg.key_is_deprecated(key):
            continue
        if key not in known:
            _refuse_unknown(key, known, place)
        form, usual = type(known[key]).__name__, known[key]
        said = f"{key} is {value!s:.100}{place}; it is"
        if isinstance(usual, float) and _NUMBER.fullmatch(str(value)):
            value = float(value)  # such as SOLVER.EPOCHS 80
            if not math.isfinite(value):
                raise UserError(f"{said} a finite number")
        try:
            if str(value) == "None" and usual is not None:
                raise UserError("no value")
            cfg.merge_from_list([key, value])
        except (ValueError, MemoryError, RecursionError) as e:  # the last two: deep nesting
            if isinstance(usual, list):
                usual = "('a',), which a shell needs in quotes"
            raise UserError(f"{said} of the type {form}, such as {usual}") from e


def _refuse_unknown(key: str, known: Mapping[str, Any], place: str) -> NoReturn:
    inside = [name.removeprefix(f"{key}.") for name in known if name.startswith(f"{key}.")]
    if names := dict.fromkeys(name.partition(".")[0] for name in inside):
        raise UserError(f"{key}{place} is a section and needs one of its keys: {', '.join(names)}")
    raise UserError(f"Unknown config key {key:.200}{place}.{did_you_mean(key, known)}")


def find_config(config: str) -> str:
    """Return the path of a config file, given the file, the folder of a run, or a config's name."""
    config = os.path.expanduser(config)
    if os.path.isdir(config):
        file = os.path.join(config, CONFIG)
        if not os.path.isfile(file):
            raise MissingFileError(f"The config {config} is a folder without {CONFIG}.")
        return file
    if os.path.isfile(config):
        if are_weights(config):
            raise UserError(
                f"The config {config} is a file of weights. Name the config or the folder of their "
                "training, and the weights apart."
            )
        return config
    if (known := config_path(config)).is_file():
        return str(known)
    hint = did_you_mean(config.removesuffix(SUFFIX).removeprefix("configs/"), config_names())
    fix = hint or " Name a file, the folder of a run, or what `ocr-panoptic configs` lists."
    what = "is not a file" if os.path.exists(config) else "does not exist"
    raise MissingFileError(f"The config {config} {what}.{fix}")


def options_of(keys: Mapping[str, Any]) -> list[str]:
    """Return config overrides [KEY, VALUE, ...]; strings are quoted, so that "1" stays a string."""
    options = []
    for key, value in keys.items():
        if isinstance(value, Path):
            value = str(value)
        elif hasattr(value, "tolist"):  # numbers and arrays of NumPy and PyTorch
            value = value.tolist()
        options += [key, repr(value)]
    return options


def values_by_key(cfg: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a dict from full keys, such as "SOLVER.STEPS", to values; tuples become lists."""
    values: dict[str, Any] = {}
    for key, value in cfg.items():
        if isinstance(value, dict) and value:
            values |= values_by_key(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return values
