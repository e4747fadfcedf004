"""Fetches and reads checkpoint files of any kind, without running code from them."""

import json
import os
import pickle
import re
import socket
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from detectron2.utils.file_io import Detectron2Handler, PathManager
from iopath.common.file_io import get_cache_dir
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ocr_panoptic.config.files import check_weights_file
from ocr_panoptic.errors import MissingFileError, UserError, lacks_memory
from ocr_panoptic.formats.files import printable

from .addresses import PREFIX, is_model, model_hint
from .settings import RECORD

TIMEOUT = 30  # seconds to wait for a server's answer
HEURISTICS = "matching_heuristics=True"  # query after a path
# Names that pickled NumPy arrays in containers use, as in Detectron2's model zoo.
ALLOWED = {
    "_codecs.encode",  # bytes of old protocols
    "collections.OrderedDict",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
}


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler that imports only what NumPy arrays and standard containers need."""

    def find_class(self, module: str, name: str) -> Any:
        # NumPy 1 and 2 have different names for this inner module.
        if f"{module.replace('numpy._core', 'numpy.core')}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} was not an allowed global")
        return super().find_class(module, name)


def has_heuristics(path: str) -> bool:
    """Return whether a path or address ends in ``?matching_heuristics=True``, as in Detectron2."""
    query = urlparse(path).query
    if query not in ("", HEURISTICS):
        raise UserError(
            f"The path of the weights, {path}, ends in ?{query}; only ?{HEURISTICS} is supported. "
            "Download or rename the file, and set MODEL.WEIGHTS to a path without a question mark."
        )
    return bool(query)


def fetch_weights(path: str, manager: Any = PathManager) -> str:
    """
    Return the local path of weights; if ``path`` is an address, download the weights first.

    Args:
        path: path, address or name of a model; a query ``?matching_heuristics=True`` is ignored.
        manager: iopath's PathManager that knows the kinds of addresses.
    """
    if has_heuristics(path):
        path = path.removesuffix(f"?{HEURISTICS}")
    if not os.path.isfile(path) and is_model(path):
        path = f"{PREFIX}{path.removeprefix(PREFIX)}"
    file = path
    if "://" in path:
        waiting = socket.getdefaulttimeout()
        socket.setdefaulttimeout(TIMEOUT)
        try:
            file = manager.get_local_path(path)
        except Exception as e:  # from urllib, http.client, iopath ...
            if isinstance(e, MissingFileError) or path.startswith(PREFIX):  # say it themselves
                raise
            url = path.replace(Detectron2Handler.PREFIX, Detectron2Handler.S3_DETECTRON2_PREFIX)
            place = Path(get_cache_dir(), urlparse(url).path.lstrip("/"))
            raise OSError(
                f"The weights {path} could not be downloaded ({e}). Check the address and the "
                f"network, or download {url} on another machine. Then copy the file to {place}, or "
                "set MODEL.WEIGHTS to it."
            ) from e
        finally:
            socket.setdefaulttimeout(waiting)
    if file:
        if not os.path.exists(file) and (hint := model_hint(path)):
            raise MissingFileError(f"{path} is neither a weights file nor a model's name.{hint}")
        check_weights_file(file)
    return file


def check_sums(filename: str) -> None:
    """Refuse a file from ``torch.save`` if its bytes differ from the checksums in it."""
    if zipfile.is_zipfile(filename):
        try:
            with zipfile.ZipFile(filename) as file:
                if changed := file.testzip():
                    raise zipfile.BadZipFile(f"{changed} does not match its checksum")
        except Exception as e:  # damaged bytes can raise almost anything
            raise _damaged(filename, f"{type(e).__name__}: {e}") from e


def read_checkpoint(filename: str, *, trust_pickle: bool = False) -> dict[str, Any]:
    """
    Return the content of a checkpoint: named tensors under "model", and any other entries.

    Tensors of ``torch.save`` stay in the file until they are used; :func:`check_sums` checks them.

    Args:
        filename: file from ``torch.save``, ``.safetensors``, or ``.pkl`` (Detectron2's model zoo).
        trust_pickle: whether to read pickles with more than tensors and arrays, which can run code.
    """
    data = _read(filename, trust_pickle)
    if not isinstance(data, Mapping):
        raise _damaged(filename, f"it contains a {type(data).__name__} instead of a state_dict")
    if filename.endswith(".pkl") and not {"model", "__author__"} <= data.keys():
        # ImageNet weights of the Caffe2 era; detection models have "blobs".
        blobs = data.get("blobs", data)
        checkpoint = {
            "model": {k: v for k, v in blobs.items() if not k.endswith("_momentum")},
            "__author__": "Caffe2",
            "matching_heuristics": True,
        }
    elif filename.endswith(".pyth") and "model_state" in data:  # pycls
        checkpoint = {"model": data["model_state"], "matching_heuristics": True}
    else:
        checkpoint = dict(data) if "model" in data else {"model": data}
    inner = checkpoint["model"]
    if isinstance(inner, Mapping) and "state_dict" in inner:
        checkpoint = {**inner, **checkpoint, "model": inner["state_dict"]}
        del checkpoint["state_dict"]
    if filename.endswith(".safetensors"):
        with safe_open(filename, "pt") as file:
            record = (file.metadata() or {}).get(RECORD)
        with suppress(ValueError):
            record = json.loads(record or "null")
        checkpoint |= {} if record is None else {RECORD: record}
    record, settings = checkpoint.get(RECORD), None
    if isinstance(record, Mapping) and {"source", "file"} <= record.keys():
        settings = record.get("settings")
    if record is not None and not isinstance(settings, Mapping):
        raise UserError(
            f"{filename}: the metadata that ocr-panoptic convert wrote are damaged. Convert the "
            "published file again."
        )
    weights = checkpoint["model"]
    if not isinstance(weights, Mapping) or not weights:
        raise _damaged(filename, "it contains no named tensors")
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor | np.ndarray | np.generic):
            raise UserError(
                f"{filename} contains more than named tensors: {printable(name)} is a "
                f"{type(value).__name__}. Save only the mapping of names to tensors, or save it "
                'under the key "model" or "state_dict".'
            )
    return checkpoint


def _read(filename: str, trust_pickle: bool) -> Any:
    try:
        if filename.endswith(".pkl"):
            # latin1: the model zoo's files were pickled by Python 2.
            with open(filename, "rb") as f:
                unpickler = pickle.Unpickler if trust_pickle else ArrayUnpickler
                return unpickler(f, encoding="latin1").load()
        if filename.endswith(".safetensors"):
            return load_file(filename)
        mmap = zipfile.is_zipfile(filename)  # not a file of PyTorch before 1.6
        return torch.load(filename, map_location="cpu", weights_only=not trust_pickle, mmap=mmap)
    except Exception as e:  # damaged bytes can make the readers raise almost anything
        if lacks_memory(e):
            raise
        # torch's own message would advise users to switch the protection off.
        refused = re.search(r"GLOBAL (\S+) was not an allowed global", str(e))
        if not refused:
            raise _damaged(filename, f"{type(e).__name__}: {e}") from e
        raise UserError(
            f"{filename} is a pickle that wants to run {printable(refused[1])}, which plain "
            "weights do not need. If you trust its origin, load it with MODEL.TRUST_PICKLE True, "
            "or convert it with --trust-pickle."
        ) from e


def is_web_page(file: str | os.PathLike) -> bool:
    """Return whether a server has answered with a web page instead of the file."""
    with open(file, "rb") as content:
        return content.read(200).lstrip().startswith(b"<")


def _damaged(file: str, reason: str) -> UserError:
    if is_web_page(file):
        reason = "it is a web page"
    if "weights only load failed" in reason.lower():  # torch advises users to trust it
        reason = "it was not written by torch.save"
    return UserError(
        f"{file} is not a checkpoint or is incomplete ({os.path.getsize(file)} bytes, "
        f"{printable(reason.splitlines()[0][:200])}). Download or copy it again, or use another "
        "file."
    )
