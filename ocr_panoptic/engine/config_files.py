"""The config of a run, from a config file, data files and the command line."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from detectron2.config import CfgNode, get_cfg

from ocr_panoptic.config import add_ocr_config
from ocr_panoptic.data.data_file import data_options
from ocr_panoptic.formats.config_files import merge_file, merge_options

logger = logging.getLogger(__name__)


def load_config(
    config_file: str,
    opts: Sequence[str],
    data: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> CfgNode:
    """
    Read a config file, data files, and the overrides of the command line.

    MODEL.TRUST_PICKLE counts only among the overrides: a stranger's config must not allow the
    code in a stranger's weights.

    Args:
        config_file: file, folder of a run, name of a config of the package, or "" for the defaults.
        opts: KEY VALUE KEY VALUE ...
        data: files that describe data sets, see :func:`.data_options`.
        settings: key -> value of a checkpoint, in place of the defaults.

    Returns:
        the config, not frozen and not completed (see :func:`.complete_config`). If the command line
        gives only SOLVER.EPOCHS or only SOLVER.MAX_ITER, the other is set to 0.
    """
    cfg = get_cfg()
    add_ocr_config(cfg)
    merge_file(cfg, config_file, settings)
    if cfg.MODEL.TRUST_PICKLE:
        logger.warning("MODEL.TRUST_PICKLE counts only on the command line; the config's does not")
        cfg.MODEL.TRUST_PICKLE = False
    opts = [*data_options(data), *opts]
    merge_options(cfg, opts)
    _let_one_length_count(cfg.SOLVER, set(opts[::2]))
    return cfg


def _let_one_length_count(solver: CfgNode, given: set[str]) -> None:
    iterations, epochs = ("SOLVER.MAX_ITER" in given), ("SOLVER.EPOCHS" in given)
    if iterations and not epochs and solver.MAX_ITER:
        solver.EPOCHS = 0.0
    elif epochs and not iterations and solver.EPOCHS:
        solver.MAX_ITER = 0


def load_arguments(args: argparse.Namespace) -> CfgNode:
    """Load the config that a command's arguments name."""
    data, settings = getattr(args, "data", None) or [], getattr(args, "settings", None)
    return load_config(args.config_file, args.opts or [], data, settings)
