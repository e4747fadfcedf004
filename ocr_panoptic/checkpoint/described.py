"""The config of a published network, as far as its file tells: by names, and by shapes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .convert import plain_name, recognised
from .published import HEAD, LAYOUTS

Shape = tuple[int, ...]


def described_settings(
    weights: Mapping[str, Any], source: str, *, inplace_abn: bool | None = None
) -> dict[str, Any]:
    """
    Return keys of the config with the values that a file of weights needs, or a frozenset of those
    that it can do with. Architecture, classes and data are the recipe's.

    Args:
        weights, source, inplace_abn: of :func:`.convert_weights`.

    Raises:
        ValueError: see :func:`.convert_weights`.
    """
    found, layout = recognised(weights, source, inplace_abn), LAYOUTS[source]
    shapes = {
        layout.rename(plain_name(str(name)), found.backbone): tuple(tensor.shape)
        for name, tensor in weights.items()
        if isinstance(tensor, Tensor) and tensor.dim() == 4
    }
    backbone = _resnet(shapes) if found.backbone == "resnet" else _hrnet(shapes)
    return {**found.expected_settings(), **backbone, **_head(shapes)}


def _head(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    if f"{HEAD}coarse.0.weight" not in shapes:  # SegFix
        return {}
    coarse = shapes[f"{HEAD}coarse.0.weight"]
    settings = {
        "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS": coarse[0],
        "MODEL.SEM_SEG_HEAD.COARSE_KERNEL": coarse[-1],
    }
    if f"{HEAD}context.bottleneck.weight" in shapes:
        settings["MODEL.CONTEXT.NAME"] = "ASP-OCR"
    elif f"{HEAD}bottleneck.weight" in shapes and f"{HEAD}context.delta.weight" in shapes:
        settings["MODEL.OCR.CHANNELS"] = shapes[f"{HEAD}bottleneck.weight"][0]
        settings["MODEL.OCR.KEY_CHANNELS"] = shapes[f"{HEAD}context.delta.weight"][0]
    return settings


def _hrnet(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    body = "backbone.body."
    if f"{body}transition0.0.0.weight" in shapes:
        features = [f"stage{i}" for i in range(1, 6)]
        return {"MODEL.TIMM.NAME": "hrnet2x_w20", "MODEL.SEM_SEG_HEAD.IN_FEATURES": features}
    width = shapes.get(f"{body}transition1.0.0.weight", (48,))[0]
    small = "" if f"{body}layer1.2.conv1.weight" in shapes else "_small_v2"
    return {"MODEL.TIMM.NAME": f"hrnet_w{width}{small}"}


def _resnet(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    settings = {"MODEL.RESNETS.DEPTH": 101 if "backbone.res4.22.conv1.weight" in shapes else 50}
    if stem := shapes.get("backbone.stem.conv3.weight"):
        settings["MODEL.RESNETS.STEM_OUT_CHANNELS"] = stem[0]
    return settings
