"""Small models with a backbone and a head, for tests that load weights into the backbone."""

import torch
from detectron2.config import CfgNode, get_cfg
from detectron2.modeling import build_backbone
from torch import nn

from ocr_panoptic import add_ocr_config


def timm_cfg(network: str, builder: str = "build_timm_backbone", *opts: object) -> CfgNode:
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.MODEL.BACKBONE.NAME = builder
    cfg.MODEL.TIMM.NAME, cfg.MODEL.TIMM.NORM = network, "BN"
    cfg.MODEL.FPN.IN_FEATURES = ["res2", "res3", "res4", "res5"]
    cfg.merge_from_list([str(o) for o in opts])
    return cfg


def resnet_cfg(**resnets: object) -> CfgNode:
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.MODEL.BACKBONE.FREEZE_AT = 0
    cfg.MODEL.RESNETS.update(DEPTH=18, NORM="BN", STRIDE_IN_1X1=False, RES2_OUT_CHANNELS=64)
    cfg.MODEL.RESNETS.update(OUT_FEATURES=["res2", "res3", "res4", "res5"])
    cfg.MODEL.RESNETS.update(**resnets)
    return cfg


class Model(nn.Module):
    """A model with a backbone, and with a head whose parameters ImageNet weights do not contain."""

    def __init__(self, backbone: CfgNode | nn.Module, channels: int = 3):
        super().__init__()
        if isinstance(backbone, CfgNode):
            channels, backbone = len(backbone.MODEL.PIXEL_MEAN), build_backbone(backbone)
        self.backbone = backbone
        self.sem_seg_head = nn.Conv2d(3, 2, 1)
        self.register_buffer("pixel_mean", torch.zeros(channels, 1, 1), persistent=False)


def with_random_norms(network: nn.Module) -> nn.Module:
    """
    Randomise the norms of a network, and return the network in evaluation mode.

    The norms differ between channels, so that a test fails if channels are mixed up.
    """
    torch.manual_seed(0)
    for tensor in network.state_dict().values():
        if tensor.ndim == 1:
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    return network.eval()
