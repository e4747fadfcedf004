"""Builds the network of a config for the processes that run it."""

import detectron2.modeling
from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.sync_norms import fit_sync_norms


def build_model(cfg: CfgNode) -> nn.Module:
    """
    Build a config's model as Detectron2 does, with batch norms that the processes can run.

    UserError is raised if the config leaves a number of classes to the data.
    """
    heads = [head for head in ("ROI_HEADS", "SEM_SEG_HEAD") if cfg.MODEL[head].NUM_CLASSES == 0]
    if missing := " and ".join(f"MODEL.{head}.NUM_CLASSES" for head in heads):
        raise UserError(
            "The config takes the number of classes from a data set, but build_model() reads none. "
            f"Set {missing}, or call complete_config(cfg) first. ROI_HEADS counts thing classes, "
            "SEM_SEG_HEAD all semantic classes."
        )
    return fit_sync_norms(detectron2.modeling.build_model(cfg), cfg.MODEL.DEVICE)
