"""Early checks of a command's arguments, before PyTorch is imported, which takes seconds."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fvcore.common.config import CfgNode


def check_arguments(args: argparse.Namespace) -> "CfgNode":
    """
    Refuse an unusable config, data file, weights, key or value, as far as it can be found without
    PyTorch. The command itself checks again.

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
    """Refuse weights that are neither an address nor a file; "" passes."""
    from ocr_panoptic.formats.config_files import check_weights_file

    if weights and "://" not in weights:
        check_weights_file(weights.partition("?")[0])  # options of Detectron2's checkpointer
