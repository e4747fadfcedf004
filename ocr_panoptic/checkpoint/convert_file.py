"""Conversion of a file of published weights to a checkpoint of this project."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from safetensors.torch import save_file
from torch import Tensor

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import replacing

from .convert import Conversion, convert_weights
from .reading import read_checkpoint
from .settings import RECORD, differing_settings, value_of

SUFFIXES = (".pth", ".safetensors")
# The sizes of images in tests. Recorded, not asked for: other sizes are a user's choice.
TEST_IMAGES = ("INPUT.FIXED_SIZE", "INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST")


def convert_file(
    source: str,
    input_file: Path,
    output_file: Path,
    cfg: CfgNode,
    *,
    inplace_abn: bool | None = None,
    trust_pickle: bool = False,
) -> Conversion:
    """
    Write a checkpoint that MODEL.WEIGHTS takes, with a record of where it comes from.

    Args:
        source: "openseg", "hrnet", "nvidia" or "mmseg".
        input_file: the published file.
        output_file: ``.pth`` or ``.safetensors``.
        cfg: of the model; its data give nothing but the number of classes.
        inplace_abn, trust_pickle: see :func:`convert_weights` and :func:`read_checkpoint`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is no checkpoint, wants to run code, or does not fit the config; or
            the output has another suffix. Nothing is written then.
    """
    if output_file.suffix not in SUFFIXES:
        raise UserError(f"{output_file}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if not input_file.is_file():
        raise MissingFileError(f"{input_file}: no such file")
    if output_file.exists() and output_file.samefile(input_file):
        raise UserError(f"{output_file}: the converted file would replace the published one")
    checkpoint = read_checkpoint(str(input_file), trust_pickle=trust_pickle)
    content = checkpoint.pop("model")
    weights = content.get("state_dict", content)
    beside = [*checkpoint, *(name for name in content if weights is not content)]
    shapes = {name: tuple(t.shape) for name, t in build_model(cfg).state_dict().items()}
    conversion = convert_weights(weights, source, shapes, inplace_abn=inplace_abn)
    conversion.dropped |= {
        name: "an entry beside the weights" for name in beside if name != "state_dict"
    }
    settings = conversion.expected_settings()
    faults = differing_settings(cfg, settings)
    if faults:
        raise UserError(
            f"The config is not for weights of {source}: their logits would be wrong.\n  "
            + "\n  ".join(faults)
            + "\nUse one of configs/converted, or set these keys."
        )
    record = {
        "source": source,
        "file": input_file.name,
        "sha256": hashlib.sha256(input_file.read_bytes()).hexdigest(),
        "inplace_abn": conversion.inplace_abn,
        "settings": {key: value_of(cfg, key) for key in settings},
        "test_images": {key: value_of(cfg, key) for key in TEST_IMAGES},
    }
    _write(output_file, conversion.weights, record)
    return conversion


def _write(file: Path, weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    with replacing(file) as temporary:
        if file.suffix == ".safetensors":
            metadata = {"format": "pt", RECORD: json.dumps(record)}
            save_file(dict(weights), temporary, metadata=metadata)
        else:
            torch.save({"model": dict(weights), RECORD: dict(record)}, temporary)
