"""Small semantic heads of both architectures (semantic and panoptic), and inputs for them."""

import torch
from detectron2.layers import ShapeSpec
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead

from ocr_panoptic.layers import OCR
from ocr_panoptic.modeling import ContextSemSegHead, OCRSemSegFPNHead
from ocr_panoptic.modeling.context import build_context
from support.segmentors import make_cfg, take_criterion

# No two numbers of channels are equal, so that a test fails if they are mixed up.
SHAPES = {"res4": ShapeSpec(channels=26, stride=8), "res5": ShapeSpec(channels=29, stride=8)}
CHANNELS, KEY_CHANNELS, COARSE_CHANNELS = 33, 17, 22
FPN_SHAPES = {f"p{i}": ShapeSpec(channels=16, stride=2**i) for i in range(2, 6)}


def make_features(shapes=SHAPES, height: int = 64, width: int = 96) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(2, s.channels, height // s.stride, width // s.stride, generator=generator)
        for name, s in shapes.items()
    }


def make_targets() -> torch.Tensor:
    return torch.randint(0, 5, (2, 64, 96), generator=torch.Generator().manual_seed(1))


def make_head(shapes=SHAPES, **kwargs) -> ContextSemSegHead:
    torch.manual_seed(0)
    cfg = make_cfg("MODEL.CONTEXT.NAME", kwargs.pop("scheme", "OCR"), "MODEL.OCR.DROPOUT", 0.0)
    cfg.MODEL.OCR.CHANNELS, cfg.MODEL.OCR.KEY_CHANNELS = CHANNELS, KEY_CHANNELS
    arguments = dict(
        in_features=["res5"],
        coarse_in_features=["res4"],
        num_classes=5,
        context=build_context(cfg, SHAPES["res5"].channels),
        criterion=take_criterion(kwargs),
        ocr_channels=CHANNELS,
        ocr_norm="BN",
        coarse_channels=COARSE_CHANNELS,
        coarse_dropout=0.0,
    )
    return ContextSemSegHead(shapes, **{**arguments, **kwargs})


def make_plain_head(**kwargs) -> SemSegFPNHead:
    arguments = dict(num_classes=5, conv_dims=32, common_stride=4, norm="GN", ignore_value=255)
    return SemSegFPNHead(FPN_SHAPES, **{**arguments, **kwargs})


def make_fpn_head(**kwargs) -> OCRSemSegFPNHead:
    torch.manual_seed(0)
    kwargs = {"loss_weight": 0.25, "coarse_loss_weight": 0.25, **kwargs}
    arguments = dict(
        criterion=take_criterion(kwargs),
        context=OCR(CHANNELS, KEY_CHANNELS, 27, norm="BN", dropout=0.0),
        ocr_channels=CHANNELS,
        ocr_norm="BN",
    )
    return OCRSemSegFPNHead(make_plain_head(), **{**arguments, **kwargs})
