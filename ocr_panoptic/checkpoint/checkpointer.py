"""Detectron2's checkpointer, for files of any origin."""

import logging
import os
from typing import Any

from detectron2.checkpoint import DetectionCheckpointer
from fvcore.common.checkpoint import _IncompatibleKeys
from torch import nn

from .imagenet import imagenet_to_backbone
from .reading import read_checkpoint
from .settings import RECORD


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

    Attributes:
        record: what tools/convert_checkpoint.py has written into the file that was loaded last, or
            None; see :func:`.settings.check_settings`. Written into files that are saved.
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
        self.record: dict[str, Any] | None = None

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

    def save(self, name: str, **kwargs: Any) -> None:
        """Detectron2's ``save``, with :attr:`record`."""
        super().save(name, **kwargs, **({RECORD: self.record} if self.record else {}))

    def _load_file(self, filename: str) -> dict[str, Any]:
        checkpoint = read_checkpoint(filename, trust_pickle=self.trust_pickle)
        self.record = checkpoint.get(RECORD)
        if self._match_names:
            checkpoint["matching_heuristics"] = True
        return checkpoint

    def _load_model(self, checkpoint: dict[str, Any]) -> _IncompatibleKeys:
        weights = checkpoint["model"].get("state_dict", checkpoint["model"])
        if any("object_context_block" in name for name in weights):
            raise ValueError(
                f"The weights {self._path} are OCR weights of another code base: convert them with "
                "tools/convert_checkpoint.py, see docs/checkpoints.md."
            )
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
