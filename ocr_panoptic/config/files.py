"""
Find config files, and load them with the overrides of a command line or a Python call.

The name of a packaged config is its path below ``configs/``, without ".yaml".
"""

import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from fvcore.common.config import CfgNode as FileNode

from ocr_panoptic.errors import MissingFileError, UserError, did_you_mean
from ocr_panoptic.formats.files import read_yaml
from ocr_panoptic.formats.run_folder import CONFIG

from .keys import add_ocr_config, check_values

if TYPE_CHECKING:
    from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

_INSTALLED = Path(__file__).parents[1] / "configs"  # setup.py copies it from the repository
FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "configs"
SUFFIX = ".yaml"
WEIGHTS = (".pth", ".pkl", ".safetensors", ".onnx")
_NUMBER = re.compile(r"[+-]?(\d+|inf|infinity|nan)", re.IGNORECASE)
# Values of config keys by full name. As in Detectron2's command line, a string is parsed like a
# Python value, so a string that must stay one has quotes of its own (see quoted()).
Overrides = Mapping[str, Any]
# Classes of Detectron2 -> subclasses with the same parameters and the same results in float32.
EXACT = {
    "PanopticFPN": "PanopticSegmentor",
    "StandardROIHeads": "ExactROIHeads",
    "MaskRCNNConvUpsampleHead": "ExactMaskHead",
}
CLASS_KEYS = ("MODEL.META_ARCHITECTURE", "MODEL.ROI_HEADS.NAME", "MODEL.ROI_MASK_HEAD.NAME")


def config_names() -> list[str]:
    """Return the sorted names of all configs except the ``Base-...`` files that others include."""
    names = (file.relative_to(FOLDER).with_suffix("") for file in FOLDER.rglob(f"*{SUFFIX}"))
    return sorted(name.as_posix() for name in names if not name.name.startswith("Base-"))


def config_path(name: str) -> Path:
    """Return the path of the config ``name`` (".yaml" is optional); the file need not exist."""
    return FOLDER / f"{name.removesuffix(SUFFIX)}{SUFFIX}"


def config_purpose(name: str) -> str:
    """Return the first sentence of the comment at the top of a config, or "" without a comment."""
    lines = config_path(name).read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line[2:] for line in comment).partition(". ")[0].removesuffix(".")


class _ConfigFile(FileNode):
    """A config that refuses to load URLs and YAML files with repeated keys."""

    @classmethod
    def _open_cfg(cls, filename: str) -> IO[str]:
        if "://" in filename:
            raise UserError(f"The config {filename:.200} is a web address. Download it first.")
        if not os.path.isfile(filename):
            raise MissingFileError(f"The config file {os.path.abspath(filename)} does not exist.")
        if not isinstance(read_yaml(filename), dict):
            raise UserError(f"The config file {filename} must consist of KEY: VALUE lines.")
        return open(filename, encoding="utf-8")


def default_config() -> "CfgNode":
    """Return Detectron2's default config with this project's keys."""
    from detectron2.config import get_cfg  # imports PyTorch, which takes seconds

    cfg = get_cfg()
    add_ocr_config(cfg)
    return cfg


def load_config(
    config_file: str,
    overrides: Overrides | Sequence[Any] = (),
    settings: Mapping[str, Any] | None = None,
) -> "CfgNode":
    """
    Load a config from a file, with overrides, for this machine.

    MODEL.TRUST_PICKLE has an effect only as an override, because a downloaded config must not
    allow downloaded weights to run code. If nothing names a device, or if this package wrote the
    config, MODEL.DEVICE becomes a GPU if there is one, else the CPU.

    Args:
        config_file: file, folder of a run, name of a packaged config, or "" for the defaults.
        overrides: values of keys, or the same as a list KEY, VALUE, KEY, VALUE ...
        settings: config values from a checkpoint, by key; they replace the defaults.

    Returns:
        the config, not yet frozen, without the values that depend on the data. If the overrides
        set SOLVER.EPOCHS but not SOLVER.MAX_ITER, MAX_ITER is 0, so that it is later computed from
        EPOCHS.
    """
    file = find_config(config_file) if config_file else ""
    cfg = default_config()
    cfg.MODEL.DEVICE = "auto"
    _merge_settings(cfg, settings or {})
    is_written = _merge_file(cfg, file) if file else False
    if settings or is_written:
        cfg.MODEL.DEVICE = "auto"  # this machine may lack the device of the training
    if cfg.MODEL.TRUST_PICKLE:
        logger.warning(
            "Ignored MODEL.TRUST_PICKLE: only the command line or Python can set it, not a file."
        )
        cfg.MODEL.TRUST_PICKLE = False
    overrides = overrides_of(overrides)
    merge_overrides(cfg, overrides)
    if "SOLVER.EPOCHS" in overrides and "SOLVER.MAX_ITER" not in overrides and cfg.SOLVER.EPOCHS:
        cfg.SOLVER.MAX_ITER = 0  # otherwise EPOCHS would have no effect
    choose_device(cfg)
    check_values(cfg, registries=False)
    return cfg


def choose_device(cfg: "CfgNode") -> None:
    """Replace the MODEL.DEVICE "auto" by a GPU if there is one, else by the CPU."""
    if cfg.MODEL.DEVICE == "auto":
        import torch

        cfg.MODEL.DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def overrides_of(words: Overrides | Sequence[Any]) -> dict[str, Any]:
    """Return overrides as a dict, from a list KEY, VALUE, KEY, VALUE ... or from a dict."""
    if isinstance(words, Mapping):
        return dict(words)
    if flags := [word for word in map(str, words) if word.startswith("--")]:
        raise UserError(f"{' '.join(flags)}: put flags before the first KEY VALUE")
    if joined := [word for word in map(str, words[::2]) if re.match(r"[A-Z][\w.]*=", word)]:
        raise UserError(f"{joined[0]:.100}: separate KEY and VALUE with a space, not with =")
    if len(words) % 2:
        raise UserError(f"Expected KEY VALUE pairs, but found {len(words)} word(s): {words}")
    return dict(zip(words[::2], words[1::2]))


def quoted(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a Python call as overrides: strings in quotes, so that "1" stays one."""
    values = {}
    for key, value in keys.items():
        if isinstance(value, Path):
            value = str(value)
        elif hasattr(value, "tolist"):  # numbers and arrays of NumPy and PyTorch
            value = value.tolist()
        values[key] = repr(value)
    return values


def merge_overrides(cfg: "CfgNode", overrides: Overrides) -> None:
    """Merge overrides into a config; in paths, ~ becomes the home directory."""
    _merge(cfg, overrides)
    cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS = map(os.path.expanduser, (cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS))


def named_as_built(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    Return a run's config, by key, with the names of the classes that the run was built from.

    An earlier version built :data:`EXACT` classes where a config named Detectron2's classes. Only
    a config that a run has written has the keys of all architectures; other configs are unchanged.
    """
    is_earlier = "MODEL.SEGFIX.CHANNELS" in values and "OCR_VERSION" not in values
    if not is_earlier or values.get("MODEL.META_ARCHITECTURE") != "PanopticFPN":
        return values
    return {**values, **{key: EXACT.get(values[key], values[key]) for key in CLASS_KEYS}}


def _merge_settings(cfg: "CfgNode", settings: Mapping[str, Any]) -> None:
    """Merge a checkpoint's settings; skip unknown keys with a warning."""
    known = values_by_key(cfg)
    if foreign := [key for key in settings if key not in known]:
        text = "Ignored config keys of the checkpoint that this version does not have: %s"
        logger.warning(text, foreign)
    own = {key: value for key, value in named_as_built(settings).items() if key in known}
    _merge(cfg, own, " in the checkpoint")


def values_of_file(file: str) -> dict[str, Any]:
    """Return the values that a config file and its bases set, by key."""
    try:
        return values_by_key(_ConfigFile.load_yaml_with_base(file))
    except (AssertionError, AttributeError, RecursionError, UserError) as e:
        if isinstance(e, UserError) and not isinstance(e.__cause__, RecursionError):
            raise
        raise UserError(
            f"{file}: its _BASE_ config cannot be read ({str(e) or type(e)}). _BASE_ must name "
            "configs that have the same sections as this one and are not based on it."
        ) from e


def _merge_file(cfg: "CfgNode", file: str) -> bool:
    """Merge a config file; return whether this package wrote it, with all keys."""
    content = values_of_file(file)
    _merge(cfg, named_as_built(content), f" in {file}")
    return "OCR_VERSION" in content


def are_weights(name: str) -> bool:
    """Return whether a file name has the suffix of a weights file, such as ".pth"."""
    return name.endswith(WEIGHTS)


def check_weights_file(path: str) -> None:
    """Raise MissingFileError unless ``path`` is a file."""
    if not os.path.isfile(path):
        what = "are not a file" if os.path.exists(path) else "do not exist"
        raise MissingFileError(
            f"The weights {path} {what}. Name a checkpoint file or a model that `ocr-panoptic "
            'models` lists, or set MODEL.WEIGHTS "" to train from random weights.'
        )


def _merge(cfg: "CfgNode", values: Mapping[str, Any], place: str = "") -> None:
    known = values_by_key(cfg)
    for key, value in values.items():
        if cfg.key_is_deprecated(key):
            continue
        if key not in known:
            _refuse_unknown(key, known, place)
        form, usual = type(known[key]).__name__, known[key]
        if isinstance(usual, float) and _NUMBER.fullmatch(str(value)):
            if not math.isfinite(float(value)):
                raise UserError(f"{key} is {value}{place}; expected a finite number.")
            value = float(value)  # such as SOLVER.EPOCHS 80
        try:
            if str(value) == "None" and usual is not None:
                raise UserError("no value")
            cfg.merge_from_list([key, value])
        except (ValueError, MemoryError, RecursionError) as e:  # the last two: deep nesting
            if isinstance(usual, (list, tuple)):
                text = str(tuple(usual) or ("a",))
                text = text if len(text) < 60 else str(tuple(usual[:1]))
                usual = f'{text} (in a shell: "{text}")'
            example = "" if usual in ("", None) else f", such as {usual}"
            raise UserError(
                f"{key} is {value!s:.100}{place}; expected a value of type {form}{example}"
            ) from e


def _refuse_unknown(key: str, known: Mapping[str, Any], place: str) -> NoReturn:
    inside = [name.removeprefix(f"{key}.") for name in known if name.startswith(f"{key}.")]
    if names := dict.fromkeys(name.partition(".")[0] for name in inside):
        raise UserError(f"{key}{place} is a section. Name one of its keys: {', '.join(names)}")
    raise UserError(f"Unknown config key {key:.200}{place}.{did_you_mean(key, known)}")


def find_config(config: str) -> str:
    """Return the path of a config file, given the file, the folder of a run, or a config's name."""
    config = os.path.expanduser(config)
    if os.path.isdir(config):
        file = os.path.join(config, CONFIG)
        if not os.path.isfile(file):
            raise MissingFileError(f"{config} contains no {CONFIG}. Name the folder of a run.")
        return file
    if os.path.isfile(config):
        if are_weights(config):
            raise UserError(
                f"{config} is a weights file, not a config. Give it as the weights (--weights), "
                "and give a config or the folder of a run as the config (--config-file)."
            )
        return config
    if (known := config_path(config)).is_file():
        return str(known)
    hint = did_you_mean(config.removesuffix(SUFFIX).removeprefix("configs/"), config_names())
    fix = hint or " Name a file, a run's folder, or a config listed by `ocr-panoptic configs`."
    what = "is not a file" if os.path.exists(config) else "does not exist"
    raise MissingFileError(f"The config {config} {what}.{fix}")


def values_by_key(cfg: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a dict from full keys, such as "SOLVER.STEPS", to values; tuples become lists."""
    values: dict[str, Any] = {}
    for key, value in cfg.items():
        if isinstance(value, dict) and value:
            values |= values_by_key(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return values
