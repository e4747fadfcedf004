"""Reading a config file and the overrides of the command line."""

import argparse
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from detectron2.config import CfgNode, get_cfg

from ocr_panoptic.config import add_ocr_config
from ocr_panoptic.config_names import SUFFIX, config_names, config_path
from ocr_panoptic.data.data_file import data_options
from ocr_panoptic.errors import MissingFileError, UserError, did_you_mean
from ocr_panoptic.formats.files import read_yaml
from ocr_panoptic.formats.run_folder import CONFIG

logger = logging.getLogger(__name__)

WEIGHTS = (".pth", ".pkl", ".pyth", ".safetensors", ".onnx")


class _ConfigFile(CfgNode):
    """Detectron2's reading of a file and its ``_BASE_``, which also refuses a key given twice."""

    @classmethod
    def _open_cfg(cls, filename: str) -> IO[str]:
        if "://" in filename:
            raise UserError(f"The config {filename:.200} is an address; download the file first.")
        if not os.path.isfile(filename):
            raise MissingFileError(f"The config file {os.path.abspath(filename)} does not exist.")
        if not isinstance(read_yaml(filename), dict):
            raise UserError(f"The config file {filename} needs lines of the form KEY: VALUE.")
        return open(filename, encoding="utf-8")


def load_config(
    config_file: str,
    opts: Sequence[str],
    data: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> CfgNode:
    """
    Read a config file, data files, and the overrides of the command line. MODEL.TRUST_PICKLE counts
    only among the last: a stranger's config must not run the code of a stranger's weights.

    Args:
        config_file: see :func:`find_config`; "" for the defaults.
        opts: KEY VALUE KEY VALUE ...
        data: files that describe data sets, see :func:`.data_options`.
        settings: key -> value of a checkpoint, in place of the defaults. Keys of another version
            are left out, with a warning.

    Returns:
        the config, not frozen, as written (see :func:`.complete_config`), except that of
        SOLVER.EPOCHS and SOLVER.MAX_ITER the one that the command line alone gives replaces the
        other.
    """
    if flags := [opt for opt in map(str, opts) if opt.startswith("--")]:
        raise UserError(f"{' '.join(flags)}: flags stand before the first KEY VALUE")
    if joined := [opt for opt in map(str, opts[::2]) if re.match(r"[A-Z][\w.]*=", opt)]:
        raise UserError(f"{joined[0]:.100}: a KEY and its VALUE are two words, without =")
    if len(opts) % 2:
        raise UserError(f"Overrides come as KEY VALUE pairs, but these are {len(opts)}: {opts}")
    cfg = get_cfg()
    add_ocr_config(cfg)
    if settings:
        _merge(cfg, _known(settings, cfg), "the checkpoint")
    if config_file:
        file = find_config(config_file)
        try:
            content = values_by_key(_ConfigFile.load_yaml_with_base(file))
        except (AssertionError, AttributeError, RecursionError) as e:
            raise UserError(f"{file}: its _BASE_ cannot be read ({str(e) or type(e)})") from e
        _merge(cfg, content, file)
    if cfg.MODEL.TRUST_PICKLE:
        logger.warning("MODEL.TRUST_PICKLE counts on the command line alone; the config's does not")
        cfg.MODEL.TRUST_PICKLE = False
    opts = [*data_options(data), *opts]
    _merge(cfg, dict(zip(opts[::2], opts[1::2])), "the command line")
    _let_one_length_count(cfg.SOLVER, set(opts[::2]))
    cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS = map(os.path.expanduser, (cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS))
    return cfg


def _let_one_length_count(solver: CfgNode, given: set[str]) -> None:
    iterations, epochs = ("SOLVER.MAX_ITER" in given), ("SOLVER.EPOCHS" in given)
    if iterations and not epochs and solver.MAX_ITER:
        solver.EPOCHS = 0.0
    elif epochs and not iterations and solver.EPOCHS:
        solver.MAX_ITER = 0


def _known(settings: Mapping[str, Any], cfg: CfgNode) -> dict[str, Any]:
    known = values_by_key(cfg)
    if foreign := [key for key in settings if key not in known]:
        logger.warning("The checkpoint's keys of another version are left out: %s", foreign)
    return {key: value for key, value in settings.items() if key in known}


def _merge(cfg: CfgNode, values: Mapping[str, Any], source: str) -> None:
    known = values_by_key(cfg)
    for key, value in values.items():
        if cfg.key_is_deprecated(key):
            continue
        if key not in known:
            hint = did_you_mean(key, known)
            raise UserError(f"Unknown config key {key:.200} in {source}.{hint}")
        form, usual = type(known[key]).__name__, known[key]
        if isinstance(usual, float) and re.fullmatch(r"[+-]?\d+", str(value)):
            value = float(value)  # SOLVER.EPOCHS 80
        try:
            if value is None and usual is not None:
                raise UserError("no value")
            cfg.merge_from_list([key, value])
        except (ValueError, MemoryError, RecursionError) as e:  # the last two: many brackets
            if isinstance(usual, list):
                usual = "\"('a',)\", in quotes on the command line"
            raise UserError(
                f"{key} is {value!s:.100} in {source}; it is of the type {form}, such as {usual}"
            ) from e


def load_arguments(args: argparse.Namespace) -> CfgNode:
    """Return :func:`load_config` of a command's arguments."""
    data, settings = getattr(args, "data", None) or [], getattr(args, "settings", None)
    return load_config(args.config_file, args.opts or [], data, settings)


def find_config(config: str) -> str:
    """
    Return the path of a config.

    Args:
        config: a file; the folder of a run, for its config.yaml; or the name of a config of the
            package, with or without suffix.
    """
    config = os.path.expanduser(config)
    if os.path.isdir(config):
        file = os.path.join(config, CONFIG)
        if not os.path.isfile(file):
            raise MissingFileError(f"--config-file {config} is a folder without {CONFIG}")
        return file
    if os.path.isfile(config):
        if config.endswith(WEIGHTS):
            raise UserError(
                f"--config-file {config} are weights, and no config. Name them with --weights, or "
                "the folder of their run with --config-file."
            )
        return config
    if (known := config_path(config)).is_file():
        return str(known)
    hint = did_you_mean(config.removesuffix(SUFFIX).removeprefix("configs/"), config_names())
    fix = hint or " Name a file, the folder of a run, or what `ocr-panoptic configs` lists."
    raise MissingFileError(f"--config-file {config} does not exist.{fix}")


def options_of(keys: Mapping[str, Any]) -> list[str]:
    """Return KEY VALUE ... of the command line that set the keys to these very values, texts among
    them that look like numbers."""
    plain = {key: str(v) if isinstance(v, Path) else v for key, v in keys.items()}
    return [part for key, value in plain.items() for part in (key, repr(value))]


def values_by_key(cfg: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """
    Return the values of a config, or of a config's file, by the full names of their keys; tuples as
    lists, which YAML has instead.

    Args:
        prefix: what the names begin with, such as "SOLVER." for that section.
    """
    values = {}
    for key, value in cfg.items():
        if isinstance(value, dict):
            values |= values_by_key(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return values
