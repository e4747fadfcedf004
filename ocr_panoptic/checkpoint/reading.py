"""Reading checkpoint files of any kind without running code from them."""

import json
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable

from .array_pickle import ArrayUnpickler, Forbidden
from .settings import RECORD


def read_checkpoint(
    filename: str, *, trust_pickle: bool = False, mmap: bool = False
) -> dict[str, Any]:
    """
    Return the content of a checkpoint: "model", the named tensors or a mapping with them as
    "state_dict", and what else the file has.

    Args:
        filename: ``.pkl`` (Detectron2's model zoo), ``.safetensors``, ``.pyth`` (pycls), or a file
            of ``torch.save``.
        trust_pickle: read pickles that need more than tensors and arrays.
        mmap: the tensors of a file of ``torch.save`` stay in it until they are used.
    """
    data = _read(filename, trust_pickle, mmap)
    if not isinstance(data, Mapping):
        raise _damaged(filename, f"it holds a {type(data).__name__}, not named tensors")
    if filename.endswith(".pkl") and not {"model", "__author__"} <= data.keys():
        # ImageNet weights of the Caffe2 era, "blobs" in detection models.
        blobs = data.get("blobs", data)
        checkpoint = {
            "model": {k: v for k, v in blobs.items() if not k.endswith("_momentum")},
            "__author__": "Caffe2",
            "matching_heuristics": True,
        }
    elif filename.endswith(".pyth"):
        checkpoint = {
            "model": data.get("model_state"),
            "__author__": "pycls",
            "matching_heuristics": True,
        }
    else:
        checkpoint = dict(data) if "model" in data else {"model": data}
    if filename.endswith(".safetensors"):
        with safe_open(filename, "pt") as file:
            record = (file.metadata() or {}).get(RECORD)
        checkpoint |= {RECORD: json.loads(record)} if record else {}
    weights = checkpoint["model"]
    if isinstance(weights, Mapping):
        weights = weights.get("state_dict", weights)
    if not isinstance(weights, Mapping) or not any(hasattr(v, "shape") for v in weights.values()):
        raise _damaged(filename, "without named tensors")
    return checkpoint


def _read(filename: str, trust_pickle: bool, mmap: bool) -> Any:
    try:
        if filename.endswith(".pkl"):
            # latin1: the model zoo's files were pickled by Python 2.
            with open(filename, "rb") as f:
                unpickler = pickle.Unpickler if trust_pickle else ArrayUnpickler
                return unpickler(f, encoding="latin1").load()
        if filename.endswith(".safetensors"):
            return load_file(filename)
        mmap = mmap and zipfile.is_zipfile(filename)
        return torch.load(filename, map_location="cpu", weights_only=not trust_pickle, mmap=mmap)
    except Exception as e:  # damaged bytes make the readers raise nearly anything
        # torch's own words say how to switch its protection off.
        refused = re.search(r"GLOBAL (\S+) was not an allowed global", str(e))
        is_newer = "Unsupported operand" in str(e) and zipfile.is_zipfile(filename)
        if not (isinstance(e, Forbidden) or refused or is_newer):
            raise _damaged(filename, f"{type(e).__name__}: {e}") from e
        what = e if isinstance(e, Forbidden) else refused[1] if refused else "a newer protocol"
        raise UserError(
            f"{filename} is a pickle that wants to run {printable(what)}, which plain weights do "
            "not need. If you trust its origin, load it with MODEL.TRUST_PICKLE True "
            "(--trust-pickle of ocr-panoptic convert)."
        ) from e


def _damaged(file: str, found: str) -> ValueError:
    size = os.path.getsize(file)
    with open(file, "rb") as f:
        start = f.read(200).lstrip()
    if size == 0:
        found = "empty"
    elif start[:1] == b"<":
        found = "a web page, not weights"
    elif start[:2] == b"PK" and not zipfile.is_zipfile(file):
        found = "its end is missing"
    elif "weights only load failed" in found.lower():
        found = "no tensors of torch.save"
    found = printable(found.partition("\n")[0][:200])
    return UserError(
        f"{file} is not a checkpoint or is incomplete ({size} bytes, {found}); download it again."
    )
