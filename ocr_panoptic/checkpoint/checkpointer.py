"""Detectron2's checkpointer, for files of any origin."""

import logging
import os
import re
import shutil
import socket
import zipfile
from pathlib import Path
from typing import Any

import torch
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.utils.file_io import PathManager
from fvcore.common.checkpoint import _IncompatibleKeys
from torch import nn

from ocr_panoptic.files import replacing, write_text

from .former_names import rename_former
from .imagenet import imagenet_to_backbone
from .reading import read_checkpoint
from .settings import RECORD

NUMBERED = re.compile(r"model_\d{7,}\.pth")
NO_CHECKPOINT = "none of the run that has begun here"  # in last_checkpoint, until there is one
TIMEOUT = 30  # seconds without an answer to a download
RESUMABLE = re.compile(r"model_(\d{7,}|final)\.pth")


class SafeCheckpointer(DetectionCheckpointer):
    """
    Detectron2's checkpointer that runs no code from a file, that reads the ImageNet files of timm,
    torchvision and HRNet too (:func:`.imagenet_to_backbone`), and that can insist on a complete
    fit. The files that it writes are whole or absent, whenever the process is killed.

    Args:
        model, save_dir, checkpointables: as Detectron2's.
        trust_pickle: read pickles that need more than tensors and arrays.
        strict: raise instead of warn when parameters of the model are missing in the file or have
            another shape there. For evaluation: a partly random model has no meaningful result.

    Attributes:
        exact: besides, the file may hold nothing that the model lacks. For resuming.
        matched: number of the model's tensors that the file loaded last has, and of all; or None.
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
        self.exact = False
        self.matched: tuple[int, int] | None = None
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
        fetch_weights(path)
        self._path = path
        self._match_names = query.endswith("=True")
        self._parsed_url_during_load = None  # left behind by a load that failed
        return super().load(path, *args, **kwargs)

    def save(self, name: str, *, tag: bool = True, **kwargs: Any) -> None:
        """
        Write the model, the checkpointables and :attr:`record`, whole or not at all.

        Args:
            name: of the file, without its suffix.
            tag: the file becomes the one to be resumed from.
            kwargs: what else is saved.

        Raises:
            OSError: the file could not be written; the message says what there is instead.
        """
        if not self.save_dir or not self.save_to_disk:
            return
        data = {"model": self.model.state_dict()}
        data |= {key: value.state_dict() for key, value in self.checkpointables.items()}
        data |= {**kwargs, **({RECORD: self.record} if self.record else {})}
        path = Path(self.save_dir) / f"{name}.pth"
        self.logger.info("Saving checkpoint to %s", path)
        try:
            with replacing(path, durable=True) as temporary:
                torch.save(data, temporary)
            if tag:
                self.tag_last_checkpoint(path.name)
        except (OSError, RuntimeError) as e:  # PyTorch's writer raises the latter on a full disk
            free = shutil.disk_usage(path.parent).free / 2**20
            raise OSError(
                f"The checkpoint {path} could not be written ({e}); {free:.0f} MiB are free there. "
                f"The last whole one is {self.get_checkpoint_file() or 'none'}. "
                "Make room, then continue with --resume."
            ) from e

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        """Make a file of the folder the one to be resumed from."""
        write_text(Path(self.save_dir) / "last_checkpoint", last_filename_basename, durable=True)

    def get_checkpoint_file(self) -> str:
        """The checkpoint to be resumed from: the one that ``last_checkpoint`` names or, where that
        is damaged or absent, the newest whole one, with a warning. "" where there is none, or none
        since :meth:`begin_anew`."""
        tag = Path(self.save_dir) / "last_checkpoint"
        if tag.is_file() and tag.read_text() == NO_CHECKPOINT:
            return ""
        named = super().get_checkpoint_file()
        if named and _is_whole(Path(named)):
            return named
        files = (p for p in Path(self.save_dir).glob("*.pth") if RESUMABLE.fullmatch(p.name))
        newest_first = sorted(files, key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
        other = next((str(p) for p in newest_first if _is_whole(p)), "")
        if named or other:
            logging.getLogger(__name__).warning(
                "%s; %s",
                f"{named} of last_checkpoint is {'damaged' if os.path.exists(named) else 'missing'}"
                if named
                else f"{self.save_dir} has no file last_checkpoint",
                f"the newest whole checkpoint is {other}" if other else "no other one is whole",
            )
        return other

    def begin_anew(self) -> None:
        """The checkpoints of the folder are those of another run, which is not to be resumed."""
        self.tag_last_checkpoint(NO_CHECKPOINT)

    def has_checkpoint(self) -> bool:
        """Whether there is one to be resumed from."""
        return bool(self.get_checkpoint_file())

    def remove_unfinished(self) -> None:
        """Remove what writers of this folder that were killed have left."""
        for path in Path(self.save_dir).glob(".*.tmp"):
            if path.name.startswith((".model_", ".last_checkpoint")):
                path.unlink(missing_ok=True)

    def prune(self, keep: int) -> None:
        """Remove all but the last ``keep`` of the numbered checkpoints up to the one that is to be
        resumed from. Later ones are of another run."""
        last = Path(self.get_checkpoint_file())
        if NUMBERED.fullmatch(last.name):
            files = sorted(p for p in last.parent.glob("*.pth") if NUMBERED.fullmatch(p.name))
            for path in files[: files.index(last) + 1][:-keep]:
                path.unlink(missing_ok=True)

    def _load_file(self, filename: str) -> dict[str, Any]:
        checkpoint = read_checkpoint(filename, trust_pickle=self.trust_pickle)
        self.record = checkpoint.get(RECORD)
        if self._match_names:
            checkpoint["matching_heuristics"] = True
        return checkpoint

    def _load_model(self, checkpoint: dict[str, Any]) -> _IncompatibleKeys:
        weights = checkpoint["model"].get("state_dict", checkpoint["model"])
        checkpoint["model"] = weights = rename_former(weights)
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
        optional = ("num_batches_tracked", "pixel_mean", "pixel_std")
        names = {k for k in self.model.state_dict() if not k.endswith(optional)}
        faults = {k: "missing in the file" for k in incompatible.missing_keys if k in names}
        for name, found, expected in incompatible.incorrect_shapes:
            faults[name] = f"{found} in the file, {expected} in the model"
        if self.exact:
            others = (k for k in incompatible.unexpected_keys if not k.endswith(optional))
            faults |= {k: "not in the model" for k in others}
        self.matched = len(names) - len(faults), len(names)
        misfit = self.strict or self.exact
        if len(faults) == len(names) or (misfit and faults):
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


def fetch_weights(path: str) -> None:
    """
    Make sure that weights are there: download those that have an address.

    Args:
        path: file or address, perhaps with a query; "" for none.

    Raises:
        FileNotFoundError: if a local file does not exist, or an address cannot be downloaded.
    """
    path = path.partition("?")[0]
    if "://" in path:
        _download(path)
    elif path and not os.path.isfile(path):
        raise FileNotFoundError(
            f"The weights {path} do not exist. Set MODEL.WEIGHTS to a checkpoint file, or to "
            '"" for random weights.'
        )


def _download(address: str) -> None:
    """Where it has not been downloaded already."""
    fix = "Download it by other means, and set MODEL.WEIGHTS to the file."
    waiting = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        file = PathManager.get_local_path(address)
    except OSError as e:  # no network, no such file, or it ends before its end
        why = getattr(e, "reason", None) or e
        raise FileNotFoundError(
            f"The weights {address} could not be downloaded ({why}). {fix}"
        ) from e
    finally:
        socket.setdefaulttimeout(waiting)
    if not os.path.isfile(file):
        raise FileNotFoundError(
            f"The weights {address} are of a kind that Detectron2 does not download; it knows "
            f"http://, https:// and detectron2://. {fix}"
        )


def _is_whole(path: Path) -> bool:
    """Whether a file of ``torch.save`` has its end, where the table of its contents is."""
    return path.is_file() and zipfile.is_zipfile(path)
