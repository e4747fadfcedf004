"""Tensor names and expected settings of the published OCR networks and SegFix."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .imagenet import detectron2_resnet_name

HEAD = "sem_seg_head."


@dataclass(frozen=True)
class Layout:
    """The tensor names of a code base, and the settings that its weights expect."""

    # Regular expression for the whole name of a module in the head -> its name in this project.
    modules: Mapping[str, str]
    # Config keys that tensor shapes do not imply -> expected value, or frozenset of allowed values.
    settings: Mapping[str, Any]
    hrnet_settings: Mapping[str, Any]  # further settings with an HRNet
    resnet_settings: Mapping[str, Any] = field(default_factory=dict)  # with a ResNet
    prefix: str = "backbone."  # prefix of the backbone's names
    # Maps a ResNet tensor's name without prefix to this project's name; "" for an unknown name.
    resnet: Callable[[str], str] | None = None
    # Matches this project's names of conv-norm-ReLUs whose published convolution has a bias.
    biased: str = ""
    # Tells from the tensor names whether the norms are InPlaceABN's; None if they never are.
    has_inplace_abn: Callable[[Iterable[str]], bool] | None = None
    leaks_with_inplace_abn: bool = False  # whether InPlaceABN's ReLUs are leaky

    def rename(self, name: str, backbone: str) -> str:
        """
        Return this project's name for a published tensor; "" if the published name is unknown.

        Args:
            name: published name of the tensor.
            backbone: kind of backbone, "hrnet" or "resnet".
        """
        module, _, kind = name.rpartition(".")
        for pattern, replacement in self.modules.items():
            if found := re.fullmatch(pattern, module):
                return f"{HEAD}{found.expand(replacement)}.{kind}"
        backbone_name = _timm_hrnet if backbone == "hrnet" else self.resnet
        if backbone_name is None or not name.startswith(self.prefix):
            return ""
        return backbone_name(name.removeprefix(self.prefix))


def _timm_hrnet(name: str) -> str:
    is_known = re.match(r"(conv[12]|bn[12]|layer1|transition[0-3]|stage[1-4])\.", name)
    return f"backbone.body.{name}" if is_known else ""


def _resnet(name: str) -> str:
    renamed = detectron2_resnet_name(name)
    return f"backbone.{renamed}" if renamed != name else ""


def _mmseg_resnet(name: str) -> str:
    found = re.match(r"stem\.([013467])\.", name)
    if found:  # the published stem is a Sequential of (conv, norm, ReLU) x 3
        conv, is_norm = divmod(int(found[1]), 3)
        return f"backbone.stem.conv{conv + 1}." + "norm." * is_norm + name[found.end() :]
    return _resnet(name)


def _conv_norm(conv: str, norm: str, target: str) -> dict[str, str]:
    # The norm can be in a Sequential with its ReLU.
    return {conv: target, rf"{norm}(?:\.0)?": target + ".norm"}


def _in_sequence(name: str, target: str, place: int = 0) -> dict[str, str]:
    """Return rules that rename a Sequential's conv at index ``place`` and the norm after it."""
    return _conv_norm(rf"{name}\.{place}", rf"{name}\.{place + 1}", target)


def _authors_ocr(name: str, relation: str = "") -> dict[str, str]:
    block = rf"{relation or name}\.object_context_block"
    modules = _in_sequence(rf"{name}\.conv_bn_dropout", "context.g")
    for theirs, ours in (("f_pixel", "phi"), ("f_object", "psi")):
        for i in (0, 1):
            modules |= _in_sequence(rf"{block}\.{theirs}", f"context.{ours}.{i}", 2 * i)
    for theirs, ours in (("f_down", "delta"), ("f_up", "rho")):
        modules |= _in_sequence(rf"{block}\.{theirs}", f"context.{ours}")
    return modules


def _asp_ocr(name: str) -> dict[str, str]:
    modules = _authors_ocr(name, rf"{name}\.context\.2")
    modules |= _in_sequence(rf"{name}\.context", "context.bottleneck")
    for i in range(4):
        modules |= _in_sequence(rf"{name}\.conv{i + 2}", f"context.branches.{i}")
    return modules


def _hrnet_ocr(prefix: str, coarse_predictor: int) -> dict[str, str]:
    return {
        **_in_sequence(rf"{prefix}conv3x3_ocr", "bottleneck"),
        **_in_sequence(rf"{prefix}aux_head", "coarse.0"),
        rf"{prefix}aux_head\.{coarse_predictor}": "coarse_predictor",
        **_authors_ocr(rf"{prefix}ocr_distri_head"),
        rf"{prefix}cls_head": "refined_predictor",
    }


def _mmseg_ocr() -> dict[str, str]:
    block = r"decode_head\.1\.object_context_block"
    modules = {r"decode_head\.0\.conv_seg": "coarse_predictor"}
    modules[r"decode_head\.1\.conv_seg"] = "refined_predictor"
    for theirs, ours in (
        (r"decode_head\.0\.convs\.0", "coarse.0"),
        (r"decode_head\.1\.bottleneck", "bottleneck"),
        (rf"{block}\.query_project\.(\d)", r"context.phi.\1"),
        (rf"{block}\.key_project\.(\d)", r"context.psi.\1"),
        (rf"{block}\.value_project", "context.delta"),
        (rf"{block}\.out_project", "context.rho"),
        (rf"{block}\.bottleneck", "context.g"),
    ):
        modules |= _conv_norm(rf"{theirs}\.conv", rf"{theirs}\.bn", ours)
    return modules


_HRNET_OCR_BIASED = rf"{re.escape(HEAD)}(bottleneck|coarse\.0)"
_AUTHORS_SETTINGS = {"MODEL.ALIGN_CORNERS": True, "MODEL.OCR.SCALE_RELATION": True}
_OTHERS_SETTINGS = {"MODEL.ALIGN_CORNERS": False, "MODEL.OCR.SCALE_RELATION": True}
_HRNET_SETTINGS = {
    "MODEL.BACKBONE.NAME": "build_timm_backbone",
    "MODEL.TIMM.ENLARGE_TWICE": False,
}
_IMAGENET = {
    "MODEL.PIXEL_MEAN": [123.675, 116.28, 103.53],
    "MODEL.PIXEL_STD": [58.395, 57.12, 57.375],
}
_RGB = {
    **_IMAGENET,
    "INPUT.FORMAT": "RGB",
    "INPUT.INTERPOLATION": "bilinear",
    "MODEL.PAD_TO_MULTIPLE": 1,
}
_DILATED = {
    "MODEL.BACKBONE.NAME": "build_dilated_resnet_backbone",
    "MODEL.RESNETS.STEM_TYPE": "deeplab",
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RESNETS.RES4_DILATION": 2,
    "MODEL.RESNETS.RES5_DILATION": 4,
    "MODEL.RESNETS.RES5_MULTI_GRID": [1, 1, 1],
    "MODEL.RESNETS.CONTRACT_DILATION": True,
}


LAYOUTS: dict[str, Layout] = {
    "openseg": Layout(
        modules={
            **_in_sequence("conv_?3x3", "bottleneck"),
            **_in_sequence("(?:dsn|aux)_head", "coarse.0"),
            r"dsn_head\.3|aux_head\.2": "coarse_predictor",
            **_authors_ocr("(?:spatial_ocr_head|ocr_distri_head)"),
            **_asp_ocr("asp_ocr_head"),
            r"head|cls_head": "refined_predictor",
            **_in_sequence("mask_head", "boundary.0"),  # SegFix
            r"mask_head\.2": "boundary.1",
            **_in_sequence("dir_head", "direction.0"),
            r"dir_head\.2": "direction.1",
        },
        settings={
            **_AUTHORS_SETTINGS,
            "INPUT.FORMAT": "BGR",
            "INPUT.INTERPOLATION": "bicubic",
            "MODEL.PAD_TO_MULTIPLE": frozenset({1, 8}),  # 8 on ADE20K
        },
        # RGB statistics, although the images are BGR.
        hrnet_settings=_HRNET_SETTINGS | _IMAGENET,
        resnet_settings={
            **_DILATED,
            "MODEL.RESNETS.STEM_CEIL_MODE": True,
            "MODEL.CONTEXT.DILATIONS": [12, 24, 36],  # for ASP-OCR
            "MODEL.PIXEL_MEAN": [102.9801, 115.9465, 122.7717],
            "MODEL.PIXEL_STD": [1.0, 1.0, 1.0],
        },
        resnet=lambda name: _resnet(name.removeprefix("resinit.")),
        biased=rf"{re.escape(HEAD)}(bottleneck|coarse\.0|context\..*)",
        # PyTorch's norms are in a Sequential with the ReLU here; InPlaceABN has its own activation.
        has_inplace_abn=lambda names: any(
            name.endswith(("object_context_block.f_pixel.1.weight", "mask_head.1.weight"))
            for name in names
        ),
        leaks_with_inplace_abn=True,
    ),
    "hrnet": Layout(
        modules=_hrnet_ocr("", 3),
        settings={**_AUTHORS_SETTINGS, **_RGB},
        hrnet_settings=_HRNET_SETTINGS,
        prefix="",
        biased=_HRNET_OCR_BIASED,
        # True for files named torch04: their InPlaceABN has PyTorch's names, but no counter.
        has_inplace_abn=lambda names: not any(
            name.endswith("num_batches_tracked") for name in names
        ),
    ),
    "nvidia": Layout(
        modules={
            **_hrnet_ocr(r"ocr\.", 2),
            **_conv_norm(r"scale_attn\.conv0", r"scale_attn\.bn0", "scale_attention.0"),
            **_conv_norm(r"scale_attn\.conv1", r"scale_attn\.bn1", "scale_attention.1"),
            r"scale_attn\.conv2": "scale_attention.2",
        },
        settings={
            **_OTHERS_SETTINGS,
            **_RGB,
            "INPUT.INTERPOLATION": frozenset({"bicubic", "bilinear"}),
        },
        hrnet_settings=_HRNET_SETTINGS,
        biased=_HRNET_OCR_BIASED,
    ),
    "mmseg": Layout(
        modules=_mmseg_ocr(),
        settings={**_OTHERS_SETTINGS, **_RGB},
        hrnet_settings=_HRNET_SETTINGS | {"MODEL.TIMM.ENLARGE_TWICE": True},
        resnet_settings={**_DILATED, "MODEL.RESNETS.STEM_CEIL_MODE": False},
        resnet=_mmseg_resnet,
    ),
}
