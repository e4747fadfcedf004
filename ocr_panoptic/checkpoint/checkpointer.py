"""Reading and writing checkpoints without running code from them."""

import io
import logging
import os
import pickle
from typing import Any

import torch
from detectron2.checkpoint import DetectionCheckpointer
from fvcore.common.checkpoint import _IncompatibleKeys
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from .imagenet import imagenet_to_backbone

_UNTRUSTED = (
    "{file} is a pickle that wants to run {what}, which plain weights do not need. "
    "If you trust its origin, load it with MODEL.TRUST_PICKLE True."
)

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


class _ArrayUnpickler(pickle.Unpickler):
    """Builds arrays and containers, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NUMPY_PICKLE:
            raise pickle.UnpicklingError(f"{module}.{name}")
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
        if path and "://" not in path and not os.path.isfile(path):
            raise FileNotFoundError(
                f"The weights {path} do not exist. Set MODEL.WEIGHTS to a checkpoint file, or to "
                '"" for random weights.'
            )
        self._path = path
        return super().load(path, *args, **kwargs)

    def _load_file(self, filename: str) -> dict[str, Any]:
        if not filename.endswith(".pkl") or self.trust_pickle:
            return super()._load_file(filename)
        with open(filename, "rb") as f:
            data = f.read()
        try:
            # latin1: the model zoo's files were pickled by Python 2.
            data = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
        except pickle.UnpicklingError as e:
            raise ValueError(_UNTRUSTED.format(file=filename, what=e)) from e
        if "model" in data and "__author__" in data:
            return data
        # ImageNet weights of the Caffe2 era: names are matched by heuristics.
        return {
            "model": {k: v for k, v in data.get("blobs", data).items() if "_momentum" not in k},
            "__author__": "Caffe2",
            "matching_heuristics": True,
        }

    def _torch_load(self, f: str) -> dict[str, Any]:
        try:
            if f.endswith(".safetensors"):
                return load_file(f)
            return torch.load(f, map_location="cpu", weights_only=not self.trust_pickle)
        except pickle.UnpicklingError as e:
            raise ValueError(_UNTRUSTED.format(file=f, what=f"more ({e})")) from e
        except (RuntimeError, EOFError, SafetensorError) as e:
            raise ValueError(
                f"{f} is not a checkpoint, or is incomplete ({e}). Fetch it again."
            ) from e

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
