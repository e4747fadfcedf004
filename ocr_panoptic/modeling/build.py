"""Builds the network of a config for the processes that run it."""

import detectron2.modeling
from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.layers.sync_norms import fit_sync_norms


def build_model(cfg: CfgNode) -> nn.Module:
    """Build a config's model as Detectron2 does, with batch norms that the processes can run."""
    return fit_sync_norms(detectron2.modeling.build_model(cfg), cfg.MODEL.DEVICE)
