"""Reading a config file and the overrides of the command line."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode, get_cfg
from yacs.config import _check_and_coerce_cfg_value_type

from ocr_panoptic.config import add_ocr_config
from ocr_panoptic.config_names import SUFFIX, config_names, config_path
from ocr_panoptic.data.data_file import data_options
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.run_folder import CONFIG
from ocr_panoptic.formats.yaml_file import read_yaml
from ocr_panoptic.nearest import did_you_mean


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
    if flags := [opt for opt in map(str, opts) if opt.startswith("--")]:
        raise UserError(f"{' '.join(flags)}: flags stand before the first KEY VALUE")
    if len(opts) % 2:
        raise UserError(f"Overrides come as KEY VALUE pairs, but these are {len(opts)}: {opts}")
    cfg = get_cfg()
    add_ocr_config(cfg)
    if config_file:
        config_file = find_config(config_file)
        for key, value in values_by_key(_read_file(config_file, ())).items():
            _set(cfg, key, value, config_file)
    opts = [*data_options(data), *opts]
    for key, value in zip(opts[::2], opts[1::2]):
        _set(cfg, key, value, "the command line")
    return cfg


def _set(cfg: CfgNode, key: str, value: Any, source: str) -> None:
    """Set a key as yacs does, but that 1 will do for 1.0."""
    if cfg.key_is_deprecated(key):
        return
    node: Any = cfg
    parts, fault = key.split("."), f"Bad config value in {source}: "
    for depth, part in enumerate(parts):
        if not isinstance(node, CfgNode):
            above = ".".join(parts[:depth])
            raise UserError(f"{fault}{key}: {above} is a value ({node!r:.100}), no section")
        if part not in node:
            hint = did_you_mean(key, values_by_key(cfg))
            raise UserError(f"Unknown config key {printable(key):.200} in {source}.{hint}")
        section, node = node, node[part]
    if isinstance(node, CfgNode):
        first = next(iter(values_by_key(node, f"{key}.")))
        raise UserError(f"{fault}{key} is a section; set one of its keys, such as {first}")
    try:
        value = cfg._decode_cfg_value(value)
        if type(value) is int and isinstance(node, float):
            value = float(value)
        found = _check_and_coerce_cfg_value_type(value, node, parts[-1], key)
    # The last three are from Python's reading of a value in many brackets, or of many digits.
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as e:
        reason = str(e) or type(e).__name__
        raise UserError(f"{fault}{reason:.1000}. {key} is {_form(node)}") from e
    if found is None and node is not None:
        raise UserError(f"{key} has no value; it is {_form(node)}.")
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str) and not text.isprintable():  # no name has such
            raise UserError(f"{key} is {value!r}, with characters that cannot be printed")
    section[parts[-1]] = found


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
