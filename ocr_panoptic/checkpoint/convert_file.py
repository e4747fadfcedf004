"""Converts a file of published weights to a checkpoint of this project."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from safetensors.torch import save_file
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import replacing

from .convert import Conversion, convert_weights, plain_name, recognise_layout
from .fit import Shape
from .published import HEAD, LAYOUTS
from .reading import read_checkpoint
from .settings import RECORD, differing_settings, settings_of

SUFFIXES = (".pth", ".safetensors")


def convert_file(
    source: str,
    input_file: Path,
    output_file: Path,
    make_config: Callable[[Mapping[str, Any]], CfgNode],
    *,
    trust_pickle: bool = False,
) -> Conversion:
    """
    Convert published weights to a checkpoint for MODEL.WEIGHTS, and write a config beside it.

    The checkpoint has a record of its origin. The config has the same name, but ends in ``.yaml``.

    Args:
        source: code base of the file: "openseg", "hrnet", "nvidia" or "mmseg".
        input_file: the published file.
        output_file: path of the checkpoint, which ends in ``.pth`` or ``.safetensors``.
        make_config: function that makes the config from the settings that
            :func:`.described_settings` returns.
        trust_pickle: also read pickles that hold more than tensors and arrays; they may run code.
    """
    if output_file.suffix not in SUFFIXES:
        raise UserError(f"{output_file}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if output_file.exists() and output_file.samefile(input_file):
        raise UserError(f"{output_file}: the converted file would replace the published one")
    checkpoint = read_checkpoint(str(input_file), trust_pickle=trust_pickle)
    weights = checkpoint.pop("model")
    cfg = make_config(described_settings(weights, source))
    on_cpu = cfg.clone()
    on_cpu.MODEL.DEVICE = "cpu"
    shapes = {name: tuple(t.shape) for name, t in build_model(on_cpu).state_dict().items()}
    conversion = convert_weights(weights, source, shapes)
    conversion.dropped |= dict.fromkeys(checkpoint, "an entry beside the weights")
    settings = conversion.expected_settings()
    if faults := differing_settings(cfg, settings):
        raise UserError(
            f"The config is not for weights of {source}: their logits would be wrong.\n  "
            + "\n  ".join(faults)
            + "\nLeave these keys to the file."
        )
    record = {
        "source": source,
        "file": input_file.name,
        "sha256": hashlib.sha256(input_file.read_bytes()).hexdigest(),
        "inplace_abn": conversion.inplace_abn,
    }
    record = settings_of(cfg, {**record, "settings": settings})
    with replacing(output_file) as temporary:
        if output_file.suffix == ".safetensors":
            metadata = {"format": "pt", RECORD: json.dumps(record)}
            save_file(conversion.weights, temporary, metadata=metadata)
        else:
            torch.save({"model": conversion.weights, RECORD: record}, temporary)
    cfg.MODEL.WEIGHTS = str(output_file)
    cfg.OUTPUT_DIR = f"./output/{output_file.stem}"
    with replacing(output_file.with_suffix(".yaml")) as temporary:
        temporary.write_text(cfg.dump())
    return conversion


def described_settings(weights: Mapping[str, Any], source: str) -> dict[str, Any]:
    """
    Return the settings that a file of weights determines: config key -> value.

    A value may be a frozenset of allowed values. The recipe config sets architecture, classes
    and data.
    """
    found, layout = recognise_layout(weights, source), LAYOUTS[source]
    shapes = {
        layout.rename(plain_name(name), found.backbone): tuple(tensor.shape)
        for name, tensor in weights.items()
        if isinstance(tensor, Tensor) and tensor.dim() == 4
    }
    if not any(name.startswith(HEAD) for name in shapes):
        raise UserError(
            f"These are not the weights of {source}: no tensor has a name of its head. Check --from"
            " (docs/checkpoints.md has a recipe for each published file)."
        )
    backbone = _resnet(shapes) if found.backbone == "resnet" else _hrnet(shapes)
    return {**found.expected_settings(), **backbone, **_head(shapes)}


def _head(shapes: Mapping[str, Shape]) -> dict[str, Any]:
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
