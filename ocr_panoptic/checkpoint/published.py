"""The published OCR networks and SegFix: their names of tensors, and the settings they expect."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .imagenet import detectron2_resnet_name

HEAD = "sem_seg_head."


@dataclass(frozen=True)
class Layout:
    """
    A code base's names of tensors, and the settings that its weights expect.

    Attributes:
        modules: name of a module -> its name in this project, by regular expressions that match a
            whole name.
        settings: config keys that shapes do not show, with the values that the weights expect, or a
            frozenset of values.
        hrnet_settings, resnet_settings: further settings for one kind of backbone.
        prefix: prefix of the backbone's names.
        resnet: maps a name of its ResNet, without prefix, to the name in this project, "" if there
            is no such name. None if the code base has no ResNet.
        biased: regular expression of this project's conv-norm-ReLUs whose convolution has a bias
            before the norm in the code base; "" for none.
        has_inplace_abn: function that returns whether a file's norms are InPlaceABN's, from the
            names of its tensors; None if they never are.
        leaks_with_inplace_abn: whether the heads' ReLUs are leaky if the norms are InPlaceABN's.
    """

    modules: Mapping[str, str]
    settings: Mapping[str, Any]
    hrnet_settings: Mapping[str, Any]
    resnet_settings: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = "backbone."
    resnet: Callable[[str], str] | None = None
    biased: str = ""
    has_inplace_abn: Callable[[Iterable[str]], bool] | None = None
    leaks_with_inplace_abn: bool = False

    def rename(self, name: str, backbone: str) -> str:
        """
        Return a tensor's name in this project, "" if the layout does not have it.

        Args:
            backbone: "hrnet" or "resnet".
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
    """Return the name of HRNet's tensor, which is the same in all code bases."""
    is_known = re.match(r"(conv[12]|bn[12]|layer1|transition[0-3]|stage[1-4])\.", name)
    return f"backbone.body.{name}" if is_known else ""


def _resnet(name: str) -> str:
    renamed = detectron2_resnet_name(name)
    return f"backbone.{renamed}" if renamed != name else ""


def _openseg_resnet(name: str) -> str:
    return _resnet(name.removeprefix("resinit."))


def _mmseg_resnet(name: str) -> str:
    """Rename a tensor of mmsegmentation, whose stem is a Sequential of (conv, norm, ReLU) x 3."""
    found = re.match(r"stem\.([013467])\.", name)
    if found:
        conv, is_norm = divmod(int(found[1]), 3)
        return f"backbone.stem.conv{conv + 1}." + "norm." * is_norm + name[found.end() :]
    return _resnet(name)


def _conv_norm(conv: str, norm: str, target: str) -> dict[str, str]:
    """Map a conv-norm-ReLU, whose norm may be in a Sequential with the ReLU."""
    return {conv: target, rf"{norm}(?:\.0)?": target + ".norm"}


def _authors_ocr(name: str, relation: str = "") -> dict[str, str]:
    """Map the module of openseg.pytorch and HRNet-OCR; ASP-OCR has ``relation`` as a submodule."""
    block = rf"{relation or name}\.object_context_block"
    modules = _conv_norm(
        rf"{name}\.conv_bn_dropout\.0", rf"{name}\.conv_bn_dropout\.1", "context.g"
    )
    for theirs, ours in (("f_pixel", "phi"), ("f_object", "psi")):
        for i in (0, 1):
            prefix = rf"{block}\.{theirs}"
            modules |= _conv_norm(
                rf"{prefix}\.{2 * i}", rf"{prefix}\.{2 * i + 1}", f"context.{ours}.{i}"
            )
    for theirs, ours in (("f_down", "delta"), ("f_up", "rho")):
        prefix = rf"{block}\.{theirs}"
        modules |= _conv_norm(rf"{prefix}\.0", rf"{prefix}\.1", f"context.{ours}")
    return modules


def _asp_ocr() -> dict[str, str]:
    """Map openseg.pytorch's module with four branches beside OCR."""
    head = "asp_ocr_head"
    modules = {
        **_authors_ocr(head, rf"{head}\.context\.2"),
        **_conv_norm(rf"{head}\.context\.0", rf"{head}\.context\.1", "context.bottleneck"),
    }
    for i in range(4):
        branch = rf"{head}\.conv{i + 2}"
        modules |= _conv_norm(rf"{branch}\.0", rf"{branch}\.1", f"context.branches.{i}")
    return modules


def _mmseg_ocr() -> dict[str, str]:
    block = r"decode_head\.1\.object_context_block"
    modules = _conv_norm(
        r"decode_head\.1\.bottleneck\.conv", r"decode_head\.1\.bottleneck\.bn", "bottleneck"
    )
    for theirs, ours in (
        (r"query_project\.(\d)", r"context.phi.\1"),
        (r"key_project\.(\d)", r"context.psi.\1"),
        ("value_project", "context.delta"),
        ("out_project", "context.rho"),
        ("bottleneck", "context.g"),
    ):
        modules |= _conv_norm(rf"{block}\.{theirs}\.conv", rf"{block}\.{theirs}\.bn", ours)
    return modules


def _segfix_branch(name: str, target: str) -> dict[str, str]:
    """Return the rules of a branch of SegFix: a conv-norm-ReLU and a classifier."""
    return {
        **_conv_norm(rf"{name}\.0", rf"{name}\.1", f"{target}.0"),
        rf"{name}\.2": f"{target}.1",
    }


def _hrnet_ocr(prefix: str, coarse_predictor: int) -> dict[str, str]:
    """Map the head of HRNet-OCR, which NVIDIA has under a prefix."""
    return {
        **_conv_norm(rf"{prefix}conv3x3_ocr\.0", rf"{prefix}conv3x3_ocr\.1", "bottleneck"),
        **_conv_norm(rf"{prefix}aux_head\.0", rf"{prefix}aux_head\.1", "coarse.0"),
        rf"{prefix}aux_head\.{coarse_predictor}": "coarse_predictor",
        **_authors_ocr(rf"{prefix}ocr_distri_head"),
        rf"{prefix}cls_head": "refined_predictor",
    }


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
            **_conv_norm(r"conv_?3x3\.0", r"conv_?3x3\.1", "bottleneck"),
            **_conv_norm(r"(?:dsn|aux)_head\.0", r"(?:dsn|aux)_head\.1", "coarse.0"),
            r"dsn_head\.3|aux_head\.2": "coarse_predictor",
            **_authors_ocr("(?:spatial_ocr_head|ocr_distri_head)"),
            **_asp_ocr(),
            r"head|cls_head": "refined_predictor",
            **_segfix_branch("mask_head", "boundary"),
            **_segfix_branch("dir_head", "direction"),
        },
        settings={
            **_AUTHORS_SETTINGS,
            "INPUT.FORMAT": "BGR",
            "INPUT.INTERPOLATION": "bicubic",
            "MODEL.PAD_TO_MULTIPLE": frozenset({1, 8}),  # 8 on ADE20K
        },
        # Statistics of RGB, although the images are BGR.
        hrnet_settings=_HRNET_SETTINGS | _IMAGENET,
        resnet_settings={
            **_DILATED,
            "MODEL.RESNETS.STEM_CEIL_MODE": True,
            "MODEL.CONTEXT.DILATIONS": [12, 24, 36],  # for ASP-OCR
            "MODEL.PIXEL_MEAN": [102.9801, 115.9465, 122.7717],
            "MODEL.PIXEL_STD": [1.0, 1.0, 1.0],
        },
        resnet=_openseg_resnet,
        biased=rf"{re.escape(HEAD)}(bottleneck|coarse\.0|context\..*)",
        # PyTorch's norms are in a Sequential with the ReLU here; InPlaceABN includes its own.
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
        # The files named torch04. InPlaceABN has PyTorch's names here, but no counter.
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
        modules={
            **_conv_norm(
                r"decode_head\.0\.convs\.0\.conv", r"decode_head\.0\.convs\.0\.bn", "coarse.0"
            ),
            r"decode_head\.0\.conv_seg": "coarse_predictor",
            **_mmseg_ocr(),
            r"decode_head\.1\.conv_seg": "refined_predictor",
        },
        settings={**_OTHERS_SETTINGS, **_RGB},
        hrnet_settings=_HRNET_SETTINGS | {"MODEL.TIMM.ENLARGE_TWICE": True},
        resnet_settings={**_DILATED, "MODEL.RESNETS.STEM_CEIL_MODE": False},
        resnet=_mmseg_resnet,
    ),
}
