"""Small semantic segmentors and their input."""

import inspect

import torch
from detectron2.config import CfgNode, get_cfg
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic import add_ocr_config
from ocr_panoptic.formats.offsets import IGNORED
from ocr_panoptic.modeling.losses import SemSegCriterion


def make_cfg(*opts: object, backbone: str = "test_resnet") -> CfgNode:
    """Return the config of a small semantic segmentor on the CPU, with 5 classes."""
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.MODEL.META_ARCHITECTURE = "OCRSemanticSegmentor"
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.BACKBONE.NAME = "build_timm_backbone"
    cfg.MODEL.TIMM.NAME = backbone
    cfg.MODEL.TIMM.NORM = cfg.MODEL.OCR.NORM = "BN"
    cfg.MODEL.PIXEL_STD = [57.0, 57.0, 57.0]
    head = cfg.MODEL.SEM_SEG_HEAD
    head.NAME, head.NUM_CLASSES = "ContextSemSegHead", 5
    if backbone == "test_resnet":  # a small network for timm's own tests
        cfg.MODEL.TIMM.OUTPUT_STRIDE = 8
        head.IN_FEATURES, head.COARSE_IN_FEATURES = ["layer4"], ["layer3"]
    else:
        head.IN_FEATURES = head.COARSE_IN_FEATURES = ["stage1", "stage2", "stage3", "stage4"]
    cfg.MODEL.OCR.CHANNELS, cfg.MODEL.OCR.KEY_CHANNELS, head.COARSE_CHANNELS = 32, 16, 24
    cfg.merge_from_list([str(o) for o in opts])
    return cfg


def make_batch(height: int = 61, width: int = 83) -> list[dict]:
    torch.manual_seed(0)
    labels = (torch.arange(width) * 5 // width).expand(height, width).clone()
    labels[:3] = 255
    images = [255 * torch.rand(3, height, width) for _ in range(2)]
    return [dict(image=i, sem_seg=labels, height=height, width=width) for i in images]


def make_resnet_cfg(depth: int, *opts: object) -> CfgNode:
    cfg = make_cfg(*opts)
    cfg.MODEL.BACKBONE.update(NAME="build_dilated_resnet_backbone", FREEZE_AT=0)
    cfg.MODEL.RESNETS.update(DEPTH=depth, NORM="BN", STRIDE_IN_1X1=False, STEM_OUT_CHANNELS=128)
    cfg.MODEL.RESNETS.update(OUT_FEATURES=["res4", "res5"], RES4_DILATION=2, RES5_DILATION=4)
    cfg.MODEL.SEM_SEG_HEAD.update(IN_FEATURES=["res5"], COARSE_IN_FEATURES=["res4"])
    return cfg


def make_segfix_cfg(*opts: object) -> CfgNode:
    cfg = make_cfg()
    cfg.MODEL.META_ARCHITECTURE = "SegFix"
    cfg.MODEL.TIMM.OUTPUT_STRIDE = 32
    cfg.MODEL.SEM_SEG_HEAD.NAME = "SegFixHead"
    cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES = ["layer2", "layer1"]
    cfg.MODEL.SEGFIX.CHANNELS, cfg.MODEL.SEGFIX.NORM = 16, "BN"
    cfg.merge_from_list([str(o) for o in opts])
    return cfg


def make_offsets_batch(height: int = 61, width: int = 83) -> list[dict]:
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 18, (2, height // 8 + 1, width // 8 + 1), generator=rng)
    labels = labels.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, :height, :width].clone()
    labels[:, :3] = IGNORED
    images = 255 * torch.rand(2, 3, height, width, generator=rng)
    return [{"image": i, "sem_seg": t} for i, t in zip(images, labels)]


def take_criterion(arguments: dict, num_classes: int = 5) -> SemSegCriterion:
    """Pop the criterion's arguments from ``arguments``, and return the criterion."""
    parameters = inspect.signature(SemSegCriterion.__init__).parameters
    own = {name: arguments.pop(name) for name in parameters if name in arguments}
    return SemSegCriterion(**{"num_classes": num_classes, **own})


def trained_like(model: nn.Module) -> nn.Module:
    """Return the model in evaluation mode, with random norms and non-zero residual logits."""
    torch.manual_seed(3)
    for module in model.modules():
        if getattr(module, "running_var", None) is not None:
            for tensor in (module.weight, module.bias, module.running_mean):
                tensor.data.add_(0.2 * torch.randn_like(tensor))
            module.running_var.mul_(0.5 + torch.rand_like(module.running_var))
        if getattr(module, "residual", False):  # so that the correction is not 0
            nn.init.normal_(module.refined_predictor.weight)
    return model.eval()


def trained_panoptic(cfg: CfgNode) -> nn.Module:
    """Return a panoptic model in evaluation mode that predicts many instances and classes."""
    torch.manual_seed(1)
    model = trained_like(build_model(cfg))
    nn.init.normal_(model.roi_heads.box_predictor.cls_score.weight, std=0.5)
    return model
