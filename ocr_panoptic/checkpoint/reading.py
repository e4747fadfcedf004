"""Reading checkpoint files of any kind without running code from them."""

import contextlib
import io
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

_UNTRUSTED = (
    "{file} is a pickle that wants to run {what}, which plain weights do not need. "
    "If you trust its origin, load it with MODEL.TRUST_PICKLE True (--trust-pickle of "
    "ocr-panoptic convert)."
)
_DAMAGED = "{file} is not a checkpoint or is incomplete ({size} bytes, {found})"
AGAIN = "; download it again."  # the advice at the end of the message
BYTES = 2**22  # of a refused pickle that are looked at; that of a large model has a tenth of it


def read_checkpoint(
    filename: str, *, trust_pickle: bool = False, mmap: bool = False
) -> dict[str, Any]:
    """
    Args:
        filename: ``.pkl`` (Detectron2's model zoo), ``.safetensors``, ``.pyth`` (pycls), or a file
            of ``torch.save``.
        trust_pickle: read pickles that need more than tensors and arrays.
        mmap: the tensors of a file of ``torch.save`` stay in it until they are used.

    Returns:
        "model", the named tensors or a mapping with them as "state_dict", and what else the file
        has

    Raises:
        ValueError: the file wants to run code, or is no checkpoint.
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
    elif filename.endswith(".pyth"):  # of pycls
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
    """The content of a file, of whatever kind."""
    # latin1: the model zoo's files were pickled by Python 2.
    unpickler = pickle.Unpickler if trust_pickle else ArrayUnpickler
    try:
        if filename.endswith(".pkl"):
            with open(filename, "rb") as f:
                return unpickler(f, encoding="latin1").load()
        if filename.endswith(".safetensors"):
            return load_file(filename)
        mmap = mmap and _is_zip(filename)
        return torch.load(filename, map_location="cpu", weights_only=not trust_pickle, mmap=mmap)
    except Forbidden as e:
        raise UserError(_UNTRUSTED.format(file=filename, what=_first_line(e))) from e
    except Exception as e:  # damaged bytes make the readers raise nearly anything
        if wanted := _refused(filename, e):
            raise UserError(_UNTRUSTED.format(file=filename, what=_first_line(wanted))) from e
        raise _damaged(filename, f"{type(e).__name__}: {e}") from e


def _refused(filename: str, error: Exception) -> str:
    """Return what the pickle in a file of ``torch.save`` would have run, which torch has refused;
    "" where the error is another one. torch's words are not for users: they say how to switch its
    protection off."""
    if "weights only load failed" not in str(error).lower():
        return ""
    if named := re.search(r"GLOBAL (\S+) was not an allowed global", str(error)):
        return named[1]
    # A pickle of a protocol that torch does not read with weights_only. Of what it imports, that
    # which every file of tensors imports is named only where there is nothing else.
    names = list(dict.fromkeys(pickled_imports(filename)))
    unusual = [n for n in names if not n.startswith(("torch.", "collections.", "numpy."))]
    names = unusual or names
    return ", ".join(names[:3] + ["..."] * (len(names) > 3))


def pickled_imports(filename: str) -> list[str]:
    """
    Args:
        filename: of ``torch.save``, with or without an archive, or a pickle.

    Returns:
        "module.name" of each import, in order, none of which is made; [] for another file
    """
    names: list[str] = []
    with contextlib.suppress(Exception):  # the bytes may be anything
        content = io.BytesIO(_pickles(filename))
        while True:  # a file without an archive is several pickles; an error ends the last one
            _ImportReader(content, names).load()
    return names


class _ImportReader(pickle._Unpickler):  # Python's own: C's takes as much memory as the bytes say
    def __init__(self, file: io.BytesIO, names: list[str]):
        super().__init__(file)
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        self.names.append(f"{module}.{name}")
        return _Nothing

    def persistent_load(self, pid: Any) -> None:
        return None


class _Nothing(dict):
    """A stand-in for whatever a pickle imports."""

    def __init__(self, *args: Any):
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


def _pickles(filename: str) -> bytes:
    if not zipfile.is_zipfile(filename):
        with open(filename, "rb") as f:
            return f.read(BYTES)
    with zipfile.ZipFile(filename) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        with archive.open(name) as f:
            return f.read(BYTES)


def _is_zip(file: str) -> bool:
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:  # its end tells of several disks
        return False


def _damaged(file: str, found: str) -> ValueError:
    size = os.path.getsize(file)
    with open(file, "rb") as f:
        start = f.read(200).lstrip()
    if size == 0:
        found = "empty"
    elif start[:1] == b"<":
        found = "a web page, not weights"
    elif start[:2] == b"PK" and not _is_zip(file):
        found = "its end is missing"
    elif start[:1] not in (b"P", b"\x80") and not file.endswith((".pkl", ".safetensors")):
        found = f"begins with {start[:16]!r}, as no file of torch.save does"
    elif "weights only load failed" in found.lower():
        found = "no tensors of torch.save"
    return UserError(_DAMAGED.format(file=file, size=size, found=_first_line(found)) + AGAIN)


def _first_line(text: object) -> str:
    """The first line, and not without end."""
    return printable(next(iter(str(text).splitlines()), "")[:200])
