"""Reading and writing checkpoints without running code from them."""

import logging
import os
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from detectron2.checkpoint import DetectionCheckpointer
from fvcore.common.checkpoint import _IncompatibleKeys
from safetensors.torch import load_file
from torch import nn

from .imagenet import imagenet_to_backbone

_UNTRUSTED = (
    "{file} is a pickle that wants to run {what}, which plain weights do not need. "
    "If you trust its origin, load it with MODEL.TRUST_PICKLE True."
)
_DAMAGED = "{file} is not a checkpoint or is incomplete ({size} bytes, {found}); download it again."

# What pickled dictionaries of NumPy arrays consist of (NumPy 1 and 2 name the module differently).
_NUMPY_PICKLE = {
    "collections.OrderedDict",
    "_codecs.encode",
    "numpy.ndarray",
    "numpy.dtype",
    *(
        f"numpy.{core}.{name}"
        for core in ("core", "_core")
        for name in ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
    ),
}


class _Forbidden(Exception):
    """A pickle names something that is neither an array nor a container."""


class _ArrayUnpickler(pickle.Unpickler):
    """Builds arrays and containers, and refuses everything else with :class:`_Forbidden`."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NUMPY_PICKLE:
            raise _Forbidden(f"{module}.{name}")
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):  # written by another NumPy than the one here
            renamed = module.replace("numpy._core", "numpy.core")
            if renamed == module:
                renamed = module.replace("numpy.core", "numpy._core")
            return super().find_class(renamed, name)


class SafeCheckpointer(DetectionCheckpointer):
    """
    Detectron2's checkpointer that runs no code from a file, that reads the ImageNet files of timm,
    torchvision and HRNet too (:func:`.imagenet_to_backbone`), and that can insist on a complete
    fit.

    Args:
        model, save_dir, checkpointables: as Detectron2's.
        trust_pickle: read pickles that need more than tensors and arrays.
        strict: raise instead of warn when parameters of the model are missing in the file or have
            another shape there. For evaluation: a partly random model has no meaningful result.
    """

    def __init__(
        self,
        model: nn.Module,
        save_dir: str = "",
        *,
        trust_pickle: bool = False,
        strict: bool = False,
        **checkpointables: Any,
    ):
        super().__init__(model, save_dir, **checkpointables)
        self.trust_pickle = trust_pickle
        self.strict = strict

    def load(self, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """
        Load a file into the model.

        Raises:
            FileNotFoundError: if a local path does not exist.
            ValueError: if the file wants to run code, is no checkpoint, fits nowhere in the model,
                or, with ``strict``, does not fit everywhere.
        """
        # Split here: Detectron2 looks for a file of the whole name where several processes train.
        path, _, query = (path or "").partition("?")
        if query not in ("", "matching_heuristics=True", "matching_heuristics=False"):
            raise ValueError(
                f"The weights {path} are followed by ?{query}; only ?matching_heuristics=True is "
                "known (names are matched as those of Caffe2 are)."
            )
        if path and "://" not in path and not os.path.isfile(path):
            raise FileNotFoundError(
                f"The weights {path} do not exist. Set MODEL.WEIGHTS to a checkpoint file, or to "
                '"" for random weights.'
            )
        self._path = path
        self._match_names = query.endswith("=True")
        self._parsed_url_during_load = None  # left behind by a load that failed
        return super().load(path, *args, **kwargs)

    def _load_file(self, filename: str) -> dict[str, Any]:
        data = self._read(filename)
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
        weights = checkpoint["model"]
        if isinstance(weights, Mapping):
            weights = weights.get("state_dict", weights)
        if not isinstance(weights, Mapping) or not any(
            hasattr(v, "shape") for v in weights.values()
        ):
            raise _damaged(filename, "without named tensors")
        if self._match_names:
            checkpoint["matching_heuristics"] = True
        return checkpoint

    def _read(self, filename: str) -> Any:
        """The content of a file, of whatever kind."""
        # latin1: the model zoo's files were pickled by Python 2.
        unpickler = pickle.Unpickler if self.trust_pickle else _ArrayUnpickler
        try:
            if filename.endswith(".pkl"):
                with open(filename, "rb") as f:
                    return unpickler(f, encoding="latin1").load()
            if filename.endswith(".safetensors"):
                return load_file(filename)
            return torch.load(filename, map_location="cpu", weights_only=not self.trust_pickle)
        except _Forbidden as e:
            raise ValueError(_UNTRUSTED.format(file=filename, what=e)) from e
        except Exception as e:  # damaged bytes make the readers raise nearly anything
            if "unsupported global" in str(e).lower():  # torch's refusal
                raise ValueError(_UNTRUSTED.format(file=filename, what=f"more ({e})")) from e
            raise _damaged(filename, f"{type(e).__name__}: {e}") from e

    def _load_model(self, checkpoint: dict[str, Any]) -> _IncompatibleKeys:
        if not checkpoint.get("matching_heuristics"):
            shapes = {k: tuple(v.shape) for k, v in self.model.state_dict().items()}
            checkpoint["model"] = imagenet_to_backbone(checkpoint["model"], shapes, self._path)
        incompatible = super()._load_model(checkpoint)
        # Not every BatchNorm has the counter, and the pixel statistics come from the config.
        names = {
            k
            for k in self.model.state_dict()
            if not k.endswith(("num_batches_tracked", "pixel_mean", "pixel_std"))
        }
        faults = {k: "missing in the file" for k in incompatible.missing_keys if k in names}
        for name, found, expected in incompatible.incorrect_shapes:
            faults[name] = f"{found} in the file, {expected} in the model"
        if len(faults) == len(names) or (self.strict and faults):
            shown = [f"{k}: {v}" for k, v in sorted(faults.items())]
            shown = "\n  ".join(shown[:10] + ["..."] * (len(shown) > 10))
            raise ValueError(
                f"The weights {self._path} do not fit the model: {len(faults)} of "
                f"{len(names)} tensors.\n  {shown}\n"
                "Use the config that the weights were trained with, or train from them first."
            )
        if faults:
            logging.getLogger(__name__).warning(
                "%d of the model's %d tensors are not in %s and keep their initialisation",
                len(faults),
                len(names),
                self._path,
            )
        return incompatible


def _damaged(file: str, found: str) -> ValueError:
    size = os.path.getsize(file)
    with open(file, "rb") as f:
        start = f.read(200).lstrip()
    if size == 0:
        found = "empty"
    elif start[:1] == b"<":
        found = "a web page, not weights"
    return ValueError(_DAMAGED.format(file=file, size=size, found=found.splitlines()[0]))
