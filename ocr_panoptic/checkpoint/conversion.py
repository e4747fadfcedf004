"""Converts published OCR weights to this project's tensor names, and reports every change."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from safetensors.torch import save_file
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import replacing

from .published import HEAD, LAYOUTS
from .published_models import sha256_of
from .reading import check_sums, read_checkpoint
from .settings import IDENTITY, RECORD, differing_settings, settings_of

Shapes = Mapping[str, tuple[int, ...]]
SUFFIXES = (".pth", ".safetensors")
# InPlaceABN scales by |w| plus this value.
ABN_EPS = 1e-5
FUSION = f"{HEAD}context.g.weight"
COUNTER = "num_batches_tracked"
# Tensor of HRNet-OCR's files -> why it is not used.
UNUSED = {"loss.criterion.weight": "MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS sets the class weights"}


@dataclass
class Conversion:
    """Converted weights, and how each tensor of the published file was converted."""

    source: str  # "openseg", "hrnet", "nvidia" or "mmseg"
    backbone: str  # "hrnet" or "resnet"
    inplace_abn: bool  # whether the published heads have InPlaceABN's norms
    weights: dict[str, Tensor] = field(default_factory=dict)  # name in the model -> tensor
    renamed: dict[str, str] = field(default_factory=dict)  # name in the file -> in the model
    folded: list[str] = field(default_factory=list)  # names of biases merged into a mean
    dropped: dict[str, str] = field(default_factory=dict)  # name in the file -> reason
    filled: list[str] = field(default_factory=list)  # counters set to 0, as named in the model
    absolute: list[str] = field(default_factory=list)  # names of InPlaceABN's weights, in the model

    def report(self) -> str:
        """Describe the conversion in text, naming the folded and the dropped tensors."""
        lines = [f"{len(self.renamed)} tensors renamed"]
        if FUSION in self.weights:
            lines.append(f"{FUSION}: reordered from [context, pixels] to [pixels, context]")
        lines.append(f"{len(self.folded)} biases folded into the means of the norms after them")
        lines += [f"  {name}" for name in self.folded]
        if self.absolute:
            count = len(self.absolute)
            lines.append(f"{count} norms come from InPlaceABN: weight -> |weight| + {ABN_EPS}")
        lines += [f"dropped: {name} ({reason})" for name, reason in self.dropped.items()]
        if self.filled:
            lines.append(f"{len(self.filled)} batch counters missing from the file: set to 0")
        return "\n".join(lines)

    def expected_settings(self) -> dict[str, Any]:
        """Return the settings that the weights expect, such as the pixel mean, by config key."""
        layout = LAYOUTS[self.source]
        is_resnet = self.backbone == "resnet"
        leaks = self.inplace_abn and layout.leaks_with_inplace_abn
        return {
            **layout.settings,
            **(layout.resnet_settings if is_resnet else layout.hrnet_settings),
            "MODEL.OCR.NEGATIVE_SLOPE": 0.01 if leaks else 0.0,
        }


def plain_name(name: str) -> str:
    return re.sub(r"^((module|model)\.)+", "", name)  # the prefixes of wrappers


def recognise_layout(weights: Mapping[str, Any], source: str) -> Conversion:
    """Recognise the backbone and norms of weights; return a Conversion without tensors."""
    layout = LAYOUTS[source]
    inplace_abn = layout.has_inplace_abn is not None and layout.has_inplace_abn(weights)
    is_hrnet = layout.resnet is None or any(".stage2." in f".{name}" for name in weights)
    return Conversion(source, "hrnet" if is_hrnet else "resnet", inplace_abn)


def convert_weights(weights: Mapping[str, Tensor], source: str, model_shapes: Shapes) -> Conversion:
    """
    Convert published weights to the names and conventions of this project's model.

    Args:
        weights: state dict of a published network.
        source: code base that published the weights, a key of :data:`.LAYOUTS`.
        model_shapes: shapes of the model's tensors, keyed by tensor name.

    Raises:
        UserError: The tensors do not correspond to the tensors of the model.
    """
    found, layout = recognise_layout(weights, source), LAYOUTS[source]
    biases: dict[str, Tensor] = {}  # name of a norm's mean -> bias of the convolution before it
    counters, faults = set(), []
    for name, tensor in weights.items():
        if plain_name(name) in UNUSED:
            found.dropped[name] = UNUSED[plain_name(name)]
            continue
        target = layout.rename(plain_name(name), found.backbone)
        if not target:
            faults.append(f"{name}: in the file, but not in the published network")
            continue
        if target.endswith(COUNTER):
            counters.add(target)
        conv, _, kind = target.rpartition(".")
        mean = f"{conv}.norm.running_mean"
        is_bias = kind == "bias" and mean in model_shapes and re.fullmatch(layout.biased, conv)
        target = mean if is_bias else target
        if target not in model_shapes and target in counters:
            found.dropped[name] = "batch counter, which the norms of this model do not have"
        elif target not in model_shapes:
            faults.append(f"{name}: becomes {target}, which the model does not have")
        elif target in (biases if is_bias else found.weights):
            faults.append(f"{name}: another tensor also becomes {target}")
        else:
            if is_bias:
                biases[target] = tensor
                found.folded.append(name)
            else:
                found.weights[target] = tensor.detach().clone().contiguous()
                found.renamed[name] = target
            if (shape := tuple(tensor.shape)) != (expected := tuple(model_shapes[target])):
                faults.append(f"{name}: {shape} in the file, {expected} for {target} in the model")
    for name in model_shapes:  # tensors that the file lacks
        if name not in found.weights and name.endswith(COUNTER):
            found.weights[name] = torch.tensor(0)
            found.filled.append(name)
        elif name not in found.weights:
            faults.append(f"{name}: in the model, but the file has no tensor for it")
        conv = name.removesuffix(".norm.running_mean")
        if re.fullmatch(layout.biased, conv) and conv != name and name not in biases:
            faults.append(f"{conv}.bias: in the published network, but not in the file")
    if faults:
        shown = "\n  ".join(faults[:20] + ["..."] * (len(faults) > 20))
        raise UserError(
            f"The file does not contain the {source} weights that the config describes: "
            f"{len(faults)} tensor(s) do not fit.\n  {shown}\n"
            "Check --from, and the config's backbone, number of classes and MODEL.HMSA.ENABLED "
            "(docs/checkpoints.md names the config for each published file)."
        )
    weights = found.weights
    for mean, bias in biases.items():  # norm(y + b) = norm'(y) with the mean lowered by b
        weights[mean] = weights[mean] - bias
    # Some networks of openseg.pytorch have InPlaceABN in the backbone and PyTorch's norms in the
    # heads. InPlaceABN has no counter of batches.
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


def convert_file(
    source: str,
    input_file: Path,
    output_file: Path,
    make_config: Callable[[Mapping[str, Any]], CfgNode],
    *,
    identity_of: Callable[[CfgNode], Mapping[str, Any] | None],
    trust_pickle: bool = False,
) -> Conversion:
    """
    Convert published weights to a checkpoint for MODEL.WEIGHTS, and write a config beside it.

    The config has the same name as the checkpoint, with the suffix ``.yaml``.

    Args:
        source: code base of the published file: "openseg", "hrnet", "nvidia" or "mmseg".
        input_file: path of the published file.
        output_file: path of the checkpoint, which must end in ``.pth`` or ``.safetensors``.
        make_config: function that makes a config from the result of :func:`described_settings`.
        identity_of: function that returns the settings and classes of a config, which a ``.pth``
            stores as the checkpoints of a training do; None to store nothing.
        trust_pickle: whether to read pickles with more than tensors and arrays, which can run code.
    """
    if output_file.suffix not in SUFFIXES:
        raise UserError(
            f"The output is {output_file}; expected a name that ends in {' or '.join(SUFFIXES)}."
        )
    if output_file.exists() and output_file.samefile(input_file):
        raise UserError(
            f"The output {output_file} would overwrite the published file. Name another file."
        )
    check_sums(str(input_file))
    checkpoint = read_checkpoint(str(input_file), trust_pickle=trust_pickle)
    weights = checkpoint.pop("model")
    cfg = make_config(described_settings(weights, source))
    conversion = convert_weights(weights, source, shapes_of(cfg))
    conversion.dropped |= dict.fromkeys(checkpoint, "not part of the weights")
    settings = conversion.expected_settings()
    if faults := differing_settings(cfg, settings):
        raise UserError(
            f"With this config, the converted {source} model would give wrong logits:\n  "
            + "\n  ".join(faults)
            + "\nRemove these keys from the config; the published file determines their values."
        )
    record = {
        "source": source,
        "file": input_file.name,
        "sha256": sha256_of(input_file),
        "inplace_abn": conversion.inplace_abn,
    }
    record = settings_of(cfg, {**record, "settings": settings})
    with replacing(output_file) as temporary:
        if output_file.suffix == ".safetensors":
            metadata = {"format": "pt", RECORD: json.dumps(record)}
            save_file(conversion.weights, temporary, metadata=metadata)
        else:
            identity = identity_of(cfg)
            entries = {RECORD: record} | ({IDENTITY: identity} if identity else {})
            torch.save({"model": conversion.weights, **entries}, temporary)
    cfg.MODEL.WEIGHTS = str(output_file)
    cfg.OUTPUT_DIR = f"./output/{output_file.stem}"
    with replacing(output_file.with_suffix(".yaml")) as temporary:
        temporary.write_text(cfg.dump())
    return conversion


def shapes_of(cfg: CfgNode) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a config's model by name; no memory is taken for them."""
    without_memory = cfg.clone()
    without_memory.MODEL.DEVICE = "meta"
    with torch.device("meta"):
        model = build_model(without_memory)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def described_settings(weights: Mapping[str, Any], source: str) -> dict[str, Any]:
    """
    Return the config keys that published weights determine, with their values.

    A value can be a frozenset of allowed values.
    """
    found, layout = recognise_layout(weights, source), LAYOUTS[source]
    shapes = {
        layout.rename(plain_name(name), found.backbone): tuple(tensor.shape)
        for name, tensor in weights.items()
        if isinstance(tensor, Tensor) and tensor.dim() == 4
    }
    if not any(name.startswith(HEAD) for name in shapes):
        raise UserError(
            f"The file does not contain {source} weights: no tensor is named like those of the "
            f"{source} head. Check --from (docs/checkpoints.md lists the published files)."
        )
    backbone = _resnet(shapes) if found.backbone == "resnet" else _hrnet(shapes)
    return {**found.expected_settings(), **backbone, **_head(shapes)}


def _head(shapes: Shapes) -> dict[str, Any]:
    if f"{HEAD}coarse.0.weight" not in shapes:  # SegFix
        return {}
    coarse = shapes[f"{HEAD}coarse.0.weight"]
    settings: dict[str, Any] = {
        "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS": coarse[0],
        "MODEL.SEM_SEG_HEAD.COARSE_KERNEL": coarse[-1],
    }
    if f"{HEAD}context.bottleneck.weight" in shapes:
        settings["MODEL.CONTEXT.NAME"] = "ASP-OCR"
    elif f"{HEAD}bottleneck.weight" in shapes and f"{HEAD}context.delta.weight" in shapes:
        settings["MODEL.OCR.CHANNELS"] = shapes[f"{HEAD}bottleneck.weight"][0]
        settings["MODEL.OCR.KEY_CHANNELS"] = shapes[f"{HEAD}context.delta.weight"][0]
    return settings


def _hrnet(shapes: Shapes) -> dict[str, Any]:
    body = "backbone.body."
    if f"{body}transition0.0.0.weight" in shapes:
        features = [f"stage{i}" for i in range(1, 6)]
        return {"MODEL.TIMM.NAME": "hrnet2x_w20", "MODEL.SEM_SEG_HEAD.IN_FEATURES": features}
    width = shapes.get(f"{body}transition1.0.0.weight", (48,))[0]
    small = "" if f"{body}layer1.2.conv1.weight" in shapes else "_small_v2"
    return {"MODEL.TIMM.NAME": f"hrnet_w{width}{small}"}


def _resnet(shapes: Shapes) -> dict[str, Any]:
    settings = {"MODEL.RESNETS.DEPTH": 101 if "backbone.res4.22.conv1.weight" in shapes else 50}
    if stem := shapes.get("backbone.stem.conv3.weight"):
        settings["MODEL.RESNETS.STEM_OUT_CHANNELS"] = stem[0]
    return settings
