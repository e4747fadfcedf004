"""Converts published OCR weights to this project's names, and accounts for every tensor."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ocr_panoptic.errors import UserError

from .published import HEAD, LAYOUTS

# InPlaceABN scales by |w| plus this value.
ABN_EPS = 1e-5
FUSION = f"{HEAD}context.g.weight"
COUNTER = "num_batches_tracked"
# Tensor of HRNet-OCR's files -> why it is not used.
UNUSED = {"loss.criterion.weight": "class weights of the loss, a key of the config here"}


@dataclass
class Conversion:
    """Converted weights, and what became of each tensor of the file."""

    source: str  # "openseg", "hrnet", "nvidia" or "mmseg"
    backbone: str  # "hrnet" or "resnet"
    inplace_abn: bool  # whether the published heads have InPlaceABN's norms
    weights: dict[str, Tensor] = field(default_factory=dict)  # name in the model -> tensor
    renamed: dict[str, str] = field(default_factory=dict)  # name in the file -> in the model
    folded: list[str] = field(default_factory=list)  # names of biases merged into a mean
    dropped: dict[str, str] = field(default_factory=dict)  # name in the file -> reason
    filled: list[str] = field(default_factory=list)  # counters set to 0, as named in the model
    absolute: list[str] = field(default_factory=list)  # InPlaceABN's weights, model's names

    def report(self) -> str:
        """Describe the conversion in lines of text that name the folded and dropped tensors."""
        lines = [f"{len(self.renamed)} tensors renamed"]
        if FUSION in self.weights:
            lines.append(f"input channels of {FUSION}: [context, pixels] -> [pixels, context]")
        lines.append(f"{len(self.folded)} biases folded into the mean of the norm after them")
        lines += [f"  {name}" for name in self.folded]
        if self.absolute:
            count = len(self.absolute)
            lines.append(f"{count} norms are InPlaceABN's: weight -> |weight| + {ABN_EPS}")
        lines += [f"dropped: {name} ({reason})" for name, reason in self.dropped.items()]
        if self.filled:
            lines.append(f"{len(self.filled)} counters of batches are not in the file: set to 0")
        return "\n".join(lines)

    def expected_settings(self) -> dict[str, Any]:
        """Return the settings that the weights need but their shapes do not imply: key -> value."""
        layout = LAYOUTS[self.source]
        is_resnet = self.backbone == "resnet"
        leaks = self.inplace_abn and layout.leaks_with_inplace_abn
        return {
            **layout.settings,
            **(layout.resnet_settings if is_resnet else layout.hrnet_settings),
            "MODEL.OCR.NEGATIVE_SLOPE": 0.01 if leaks else 0.0,
        }


def plain_name(name: str) -> str:
    """Return a tensor's name without the prefixes "module." and "model." of wrappers."""
    return re.sub(r"^((module|model)\.)+", "", name)


def recognise_layout(weights: Mapping[str, Any], source: str) -> Conversion:
    """Recognise backbone and norms by the tensor names; return a Conversion without tensors."""
    layout = LAYOUTS[source]
    inplace_abn = layout.has_inplace_abn is not None and layout.has_inplace_abn(weights)
    is_hrnet = layout.resnet is None or any(".stage2." in f".{name}" for name in weights)
    return Conversion(source, "hrnet" if is_hrnet else "resnet", inplace_abn)


def convert_weights(
    weights: Mapping[str, Tensor], source: str, model_shapes: Mapping[str, tuple[int, ...]]
) -> Conversion:
    """
    Rename and transform published weights.

    If some norms have a counter of batches, the norms without one are InPlaceABN's. (Some networks
    of openseg.pytorch have InPlaceABN in the backbone, and PyTorch's norms in the heads.)

    Args:
        weights: state dict of a published network.
        source: code base that published them, a key of :data:`.LAYOUTS`.
        model_shapes: shape of each tensor of the model, by name.
    """
    found, layout = recognise_layout(weights, source), LAYOUTS[source]
    biases: dict[str, Tensor] = {}
    targets = {name: layout.rename(plain_name(name), found.backbone) for name in weights}
    faults = [
        fault
        for name, target in targets.items()
        if (fault := _add_tensor(name, target, weights[name], model_shapes, found, biases))
    ]
    for name in model_shapes:  # tensors that the file lacks
        if name not in found.weights and name.endswith(COUNTER):
            found.weights[name] = torch.tensor(0)
            found.filled.append(name)
        elif name not in found.weights:
            faults.append(f"{name}: in the model, but nothing in the file becomes it")
        conv = name.removesuffix(".norm.running_mean")
        if re.fullmatch(layout.biased, conv) and conv != name and name not in biases:
            faults.append(f"{conv}.bias: the published network has it, the file does not")
    if faults:
        shown = "\n  ".join(faults[:20] + ["..."] * (len(faults) > 20))
        raise UserError(
            f"These are not the weights of {source} that the config describes; {len(faults)} "
            f"tensors do not fit.\n  {shown}\n"
            "Check --from, and the recipe's backbone, classes and HMSA.ENABLED "
            "(docs/checkpoints.md has a recipe for each published file)."
        )
    weights = found.weights
    for mean, bias in biases.items():  # norm(y + b) = norm'(y) with the mean lowered by b
        weights[mean] = weights[mean] - bias
    counters = {target for target in targets.values() if target.endswith(COUNTER)}
    is_mixed = layout.has_inplace_abn is not None and counters
    for name in weights:
        norm = name.removesuffix("weight")
        is_abn = norm + COUNTER not in counters if is_mixed else found.inplace_abn
        if is_abn and norm + "running_mean" in weights:
            weights[name] = weights[name].abs() + ABN_EPS
            found.absolute.append(name)
    if FUSION in weights:  # SegFix does not have it
        weights[FUSION] = weights[FUSION].roll(-weights[FUSION].shape[0], dims=1)
    return found


def _add_tensor(
    name: str,
    target: str,
    tensor: Tensor,
    model_shapes: Mapping[str, tuple[int, ...]],
    found: Conversion,
    biases: dict[str, Tensor],
) -> str:
    """
    Add a tensor of the file to ``found``; a convolution's bias before a norm, to ``biases``.

    Returns:
        reason why the tensor does not fit, or ""
    """
    if plain_name(name) in UNUSED:
        found.dropped[name] = UNUSED[plain_name(name)]
        return ""
    if not target:
        return f"{name}: in the file, but not in the published network"
    mean = target.removesuffix("bias") + "norm.running_mean"
    is_bias = (
        mean in model_shapes
        and target.endswith(".bias")
        and re.fullmatch(LAYOUTS[found.source].biased, target.removesuffix(".bias"))
    )
    target = mean if is_bias else target
    if target not in model_shapes:
        if target.endswith(COUNTER):
            found.dropped[name] = "counter of batches, which this model's norms do not have"
            return ""
        return f"{name}: would be {target}, which the model does not have"
    if target in (biases if is_bias else found.weights):
        return f"{name}: a second tensor for {target}"
    if is_bias:
        biases[target] = tensor
        found.folded.append(name)
    else:
        found.weights[target], found.renamed[name] = tensor.detach().clone().contiguous(), target
    shape, expected = tuple(tensor.shape), tuple(model_shapes[target])
    if shape != expected:
        return f"{name}: {shape} in the file, {expected} for {target} in the model"
    return ""
