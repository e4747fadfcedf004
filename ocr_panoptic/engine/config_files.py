"""Reading a config file and the overrides of the command line."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode, get_cfg
from detectron2.config.compat import guess_version

from ocr_panoptic.config import add_ocr_config
from ocr_panoptic.config_names import SUFFIX, config_names, config_path
from ocr_panoptic.data import data_options
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.bounded_yaml import read_yaml
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.nearest import did_you_mean

# The messages of yacs that name a key; original and replacement are shown as str() has them.
_UNKNOWN = re.compile(r"Non-existent (?:config )?key: ([\w.]+)")
_MISMATCH = re.compile(r"Type mismatch \(.*\) with values \(.*\) for config key: ([\w.]+)", re.S)


def load_config(config_file: str, opts: Sequence[str], data: Sequence[str] = ()) -> CfgNode:
    """
    Read a config file, data files, and the overrides of the command line.

    Args:
        config_file: see :func:`find_config`; "" for the defaults.
        opts: KEY VALUE KEY VALUE ...
        data: files that describe data sets, see :func:`.data_options`.

    Returns:
        the config, not frozen, exactly as written (see :func:`.setup.complete_config`)

    Raises:
        FileNotFoundError: if there is no such config, or not the one that it names as its _BASE_,
            or no such data file.
        ValueError: for a file that holds no keys, an unknown key, a value of the wrong type or with
            characters that cannot be printed, or a missing value.
    """
    cfg = get_cfg()
    add_ocr_config(cfg)
    usual = values_by_key(cfg)
    content = {}
    if config_file:
        config_file = find_config(config_file)
        content = _read_file(config_file, ())
    if flags := [opt for opt in map(str, opts) if opt.startswith("--")]:
        raise UserError(f"{' '.join(flags)}: flags stand before the first KEY VALUE")
    if len(opts) % 2:
        raise UserError(f"Overrides come as KEY VALUE pairs, but these are {len(opts)}: {opts}")
    opts = [*data_options(data), *opts]
    source = config_file
    try:
        if config_file:
            _merge(cfg, CfgNode(content), config_file)
        source = "the command line"
        for key, value in zip(opts[::2], opts[1::2]):
            _check_sections(cfg, key)
            value = cfg._decode_cfg_value(value)
            cfg.merge_from_list([key, _as_float(value, values_by_key(cfg).get(key))])
    # The first three are from yacs, the next two from its descent into a section that is none or
    # has a key that is no text, the others from Python's reading of a value in many brackets.
    except (
        *(KeyError, AssertionError, ValueError),
        *(TypeError, AttributeError),
        *(RecursionError, MemoryError, OverflowError),
    ) as e:
        raise UserError(_explain(cfg, source, e)) from e
    for key, value in values_by_key(cfg).items():
        if value is None and usual.get(key) is not None:
            raise UserError(f"{key} has no value; it is {_form(usual[key])}.")
    _check_characters(cfg)
    return cfg


def load_arguments(args: argparse.Namespace) -> CfgNode:
    """Return :func:`load_config` of a command's arguments."""
    return load_config(args.config_file, args.opts or [], getattr(args, "data", None) or [])


def find_config(config: str) -> str:
    """
    Args:
        config: a file; the folder of a run, for its config.yaml; or the name of a config of the
            package, with or without suffix.

    Returns:
        the path of the file

    Raises:
        FileNotFoundError: there is none; the name that is most like it is named.
        ValueError: it is an address.
    """
    if "://" in config:
        raise UserError(f"--config-file {config} is an address; download the file first")
    if os.path.isdir(config):
        file = os.path.join(config, CONFIG)
        if not os.path.isfile(file):
            raise MissingFileError(f"--config-file {config} is a folder without {CONFIG}")
        return file
    if os.path.isfile(config):
        return config
    if (known := config_path(config)).is_file():
        return str(known)
    hint = did_you_mean(config.removesuffix(SUFFIX).removeprefix("configs/"), config_names())
    fix = hint or " Name a file, the folder of a run, or what `ocr-panoptic configs` lists."
    raise MissingFileError(f"--config-file {config} does not exist.{fix}")


def options_of(keys: Mapping[str, Any]) -> list[str]:
    """KEY VALUE ... of the command line that set the keys to these very values, texts among them
    that look like numbers."""
    plain = {key: str(v) if isinstance(v, Path) else v for key, v in keys.items()}
    return [part for key, value in plain.items() for part in (key, repr(value))]


def _merge(cfg: CfgNode, content: CfgNode, file: str) -> None:
    """Detectron2's ``merge_from_file`` of a file's content, which takes no 1 for 1.0."""
    if (content.get("VERSION") or guess_version(content, file)) == cfg.VERSION:
        _take_integers(content, cfg)
        cfg.merge_from_other_cfg(content)
    else:  # it translates the keys
        cfg.merge_from_file(file, allow_unsafe=False)


def _take_integers(content: CfgNode, cfg: CfgNode) -> None:
    for key, value in content.items():
        if isinstance(value, CfgNode) and isinstance(cfg.get(key), CfgNode):
            _take_integers(value, cfg[key])
        else:
            content[key] = _as_float(value, cfg.get(key))


def _as_float(value: Any, usual: Any) -> Any:
    return float(value) if type(value) is int and isinstance(usual, float) else value


def _check_characters(cfg: CfgNode) -> None:
    """Refuse what no name has, and what a system or a terminal takes for something else."""
    for key, value in values_by_key(cfg).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isprintable():
                raise UserError(f"{key} is {value!r}, with characters that cannot be printed")


def _read_file(file: str, included_by: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of a file over that of the files that it includes; refuse one that holds
    something other than keys."""
    content = read_yaml(file)
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise UserError(f"The config file {file} {found}; it needs lines of the form KEY: VALUE.")
    check_keys(file, content)
    bases = content.pop("_BASE_", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(
            f"{file} has _BASE_: {bases!r}; it is the path of a file, or a list of them"
        )
    merged: dict[str, Any] = {}
    for base in bases:
        if "://" in base:
            raise UserError(f"{file} has _BASE_: {base:.200}, an address; download the file first")
        path = os.path.join(os.path.dirname(file), os.path.expanduser(base))
        if not os.path.isfile(path):
            raise MissingFileError(
                f"{file} names _BASE_: {base:.200}, but {os.path.abspath(path):.500} does not exist"
            )
        if os.path.realpath(path) in (*included_by, os.path.realpath(file)):
            raise UserError(f"{file} names _BASE_: {base}, which includes {file} itself")
        _overlay(merged, _read_file(path, (*included_by, os.path.realpath(file))))
    _overlay(merged, content)
    return merged


def _overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _overlay(below[key], value)
        else:
            below[key] = value


def check_keys(file: str, content: Mapping[Any, Any]) -> None:
    """
    Args:
        file: that has the content, for the message.

    Raises:
        ValueError: a key is no text.
    """
    for key, value in content.items():
        if not isinstance(key, str):
            raise UserError(f"{file} has the key {key!r}; the keys of a config are words")
        if isinstance(value, Mapping):
            check_keys(file, value)


def _check_sections(cfg: CfgNode, key: str) -> None:
    """Refuse A.B.C where A.B is a value."""
    node: Any = cfg
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, CfgNode):
            raise UserError(f"{key}: {'.'.join(parts[:depth])} is a value ({node!r}), no section")
        if part not in node:
            return
        node = node[part]
    if isinstance(node, CfgNode):
        first = next(iter(values_by_key(node, f"{key}.")))
        raise UserError(f"{key} is a section; set one of its keys, such as {first}")


def _explain(cfg: CfgNode, source: str, error: Exception) -> str:
    if unknown := _UNKNOWN.search(str(error)):
        hint = did_you_mean(unknown[1], values_by_key(cfg))
        return f"Unknown config key {unknown[1]:.200} in {source}.{hint}"
    reason = " ".join(str(error).split()) or type(error).__name__  # yacs shows sections in lines
    if isinstance(error, TypeError | AttributeError):
        reason += "; is a section empty, or a key no text?"
    message = f"Bad config value in {source}: {reason:.1000}"
    if mismatch := _MISMATCH.search(str(error)):
        value: Any = cfg
        for part in mismatch[1].split("."):
            value = value[part]
        if isinstance(value, CfgNode):  # all of which the reason has
            first = next(iter(values_by_key(value, f"{mismatch[1]}.")))
            return (
                f"Bad config value in {source}: {mismatch[1]} is a section of keys, such as "
                f"{first}, and has none."
            )
        message += f". {mismatch[1]} is {_form(value)}"
    return message


def _form(value: Any) -> str:
    if isinstance(value, tuple | list):
        return (
            f"a {type(value).__name__}, such as {value or ('one_name',)}; "
            "put it in quotes on the command line: \"('one_name',)\""
        )
    article = "an" if isinstance(value, int) and not isinstance(value, bool) else "a"
    return f"{article} {type(value).__name__}, such as {value!r}"


def values_by_key(cfg: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """
    Args:
        cfg: a config, or the content of a config's file.
        prefix: of the names, such as "SOLVER." for that section.

    Returns:
        the values by the full names of their keys; tuples as lists, which YAML has instead
    """
    values = {}
    for key, value in cfg.items():
        if isinstance(value, dict):
            values |= values_by_key(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = list(value) if isinstance(value, tuple) else value
    return values
