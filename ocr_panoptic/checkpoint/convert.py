"""Published OCR weights under this project's names, with every tensor accounted for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from detectron2.config import CfgNode
from torch import Tensor

from .published import HEAD, LAYOUTS, Layout

# InPlaceABN scales by |w| + this.
ABN_EPS = 1e-5
COUNTER = "num_batches_tracked"


@dataclass
class Conversion:
    """
    Attributes:
        weights: tensor of each name in the model.
        inplace_abn: the norms were InPlaceABN's.
        renamed: name in the file -> name in the model, of tensors that are used as they are or
            with a change that ``changes`` names.
        folded: name in the file of biases that are part of the norm behind them.
        dropped: name in the file -> why it is not used.
        filled: name in the model -> why it needs nothing from the file.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    inplace_abn: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    folded: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    filled: dict[str, str] = field(default_factory=dict)

    def report(self) -> str:
        """Every tensor's whereabouts, in a few lines."""
        lines = [
            f"{len(self.renamed)} tensors renamed; the input channels of "
            f"{HEAD}context.g.weight change places, [context, pixels] -> [pixels, context]",
            f"{len(self.folded)} biases folded into the mean of the norm behind them"
            + (f": {', '.join(self.folded)}" if self.folded else ""),
        ]
        if self.inplace_abn:
            lines.append(f"norms are InPlaceABN's: weight -> |weight| + {ABN_EPS}")
        for what, names in (("dropped", self.dropped), ("not in the file", self.filled)):
            for reason in sorted(set(names.values())):
                which = sorted(name for name, why in names.items() if why == reason)
                shown = ", ".join(which[:3] + ["..."] * (len(which) > 3))
                lines.append(f"{len(which)} tensors {what} ({reason}): {shown}")
        return "\n".join(lines)


def convert_weights(
    weights: Mapping[str, Tensor],
    source: str,
    model_shapes: Mapping[str, tuple[int, ...]],
    *,
    inplace_abn: bool | None = None,
) -> Conversion:
    """
    Args:
        weights: the state dict of a published network, with or without ``module.`` and ``model.``
            in front of its names.
        source: "openseg", "hrnet" or "mmseg".
        model_shapes: shape of each tensor of the model.
        inplace_abn: whether the norms are InPlaceABN's; None to tell it from the names.

    Raises:
        ValueError: for tensors that the layout does not have, that are missing, or of another
            shape than the model's; all of them are named.
    """
    layout = LAYOUTS[source]
    tensors = {re.sub(r"^((module|model)\.)+", "", name): t for name, t in weights.items()}
    if inplace_abn is None:
        inplace_abn = layout.has_inplace_abn(tensors)
    found = Conversion(inplace_abn=inplace_abn)
    biases: dict[str, Tensor] = {}
    unknown = _rename(tensors, layout, model_shapes, found, biases)
    _fill(found, model_shapes)
    _raise_faults(source, found, unknown, biases, model_shapes)
    for name, bias in biases.items():
        # norm(y + b) = norm'(y) with the mean lowered by b.
        mean = name.removesuffix("bias") + "norm.running_mean"
        found.weights[mean] = found.weights[mean] - bias
    if inplace_abn:
        for name in found.weights:
            if name.removesuffix("weight") + "running_mean" in found.weights:
                found.weights[name] = found.weights[name].abs() + ABN_EPS
    fuse = f"{HEAD}context.g.weight"
    context = found.weights[fuse].shape[0]
    found.weights[fuse] = found.weights[fuse].roll(-context, dims=1)
    return found


def _rename(
    tensors: Mapping[str, Tensor],
    layout: Layout,
    model_shapes: Mapping[str, tuple[int, ...]],
    found: Conversion,
    biases: dict[str, Tensor],
) -> list[str]:
    """Fill ``found`` and ``biases``; returns faults."""
    faults = []
    backbone = "hrnet" if any(".stage2." in f".{name}" for name in tensors) else "resnet"
    for name, tensor in tensors.items():
        reason = next((why for p, why in layout.dropped.items() if re.fullmatch(p, name)), None)
        target = layout.rename(name, backbone)
        if reason:
            found.dropped[name] = reason
        elif not target:
            faults.append(f"{name}: in the file, but not in the published network")
        elif target in found.weights or target in biases:
            faults.append(f"{name}: a second tensor for {target}")
        elif target in model_shapes:
            found.weights[target] = tensor.detach().clone().contiguous()
            found.renamed[name] = target
        elif target.endswith(COUNTER):
            found.dropped[name] = "counter of batches, which this model's norms do not have"
        elif target.endswith(".bias") and _mean_behind(target) in model_shapes:
            biases[target] = tensor.detach()
            found.folded.append(name)
        else:
            faults.append(f"{name}: would be {target}, which the model does not have")
    return faults


def _mean_behind(bias: str) -> str:
    return bias.removesuffix("bias") + "norm.running_mean"


def _fill(found: Conversion, model_shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name in model_shapes:
        if name.endswith(COUNTER) and name not in found.weights:
            found.weights[name] = torch.tensor(0)
            found.filled[name] = "counter of batches, 0; norms with a momentum do not use it"


def _raise_faults(
    source: str,
    found: Conversion,
    faults: list[str],
    biases: Mapping[str, Tensor],
    model_shapes: Mapping[str, tuple[int, ...]],
) -> None:
    origin = {target: name for name, target in found.renamed.items()}
    for name, shape in model_shapes.items():
        if name not in found.weights:
            faults.append(f"{name}: in the model, but nothing in the file becomes it")
        elif tuple(found.weights[name].shape) != tuple(shape):
            faults.append(
                f"{origin.get(name, name)}: {tuple(found.weights[name].shape)} in the file, "
                f"{tuple(shape)} for {name} in the model"
            )
    for name, bias in biases.items():
        if tuple(bias.shape) != tuple(model_shapes[_mean_behind(name)]):
            faults.append(f"{name}: {tuple(bias.shape)} in the file, another size than its norm")
    if faults:
        shown = "\n  ".join(faults[:20] + ["..."] * (len(faults) > 20))
        raise ValueError(
            f"These are not the weights of {source} that the config describes; {len(faults)} "
            f"tensors do not fit.\n  {shown}\n"
            "Check --from, and the config's classes, backbone, COARSE_KERNEL and COARSE_CHANNELS "
            "(configs/converted has one for each published file)."
        )


def expected_settings(cfg: CfgNode, source: str, inplace_abn: bool) -> dict[str, Any]:
    """Keys of the config, and the values that weights of a source expect, shapes apart."""
    layout = LAYOUTS[source]
    is_resnet = cfg.MODEL.BACKBONE.NAME == "build_dilated_resnet_backbone"
    expected = layout.settings | (layout.resnet_settings if is_resnet else layout.hrnet_settings)
    leaks = inplace_abn and layout.leaks_with_inplace_abn
    return expected | {"MODEL.OCR.NEGATIVE_SLOPE": 0.01 if leaks else 0.0}
