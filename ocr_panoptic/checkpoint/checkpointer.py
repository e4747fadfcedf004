"""A Detectron2 checkpointer that also reads published weights and untrusted files."""

import logging
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from detectron2.checkpoint import DetectionCheckpointer
from fvcore.common.checkpoint import _IncompatibleKeys
from torch import nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import replacing, write_text

from .class_rows import Rows, rows_by_name, zoo_classes
from .fit import Fit
from .imagenet import adapt_input_channels, adapt_names
from .reading import fetch_weights, read_checkpoint
from .settings import IDENTITY, RECORD

logger = logging.getLogger(__name__)

NUMBERED = re.compile(r"model_\d{7,}\.pth")
RESUMABLE = re.compile(r"model_(\d{7,}|final)\.pth")
NO_CHECKPOINT = "none of the run that has begun here"  # text of last_checkpoint in a new run


class SafeCheckpointer(DetectionCheckpointer):
    """
    A Detectron2 checkpointer that runs no code from files and checks that files fit the model.

    A file is written completely or not at all, even if the process is killed.

    Args:
        model: module whose weights are loaded and saved.
        save_dir: folder for the checkpoints; "" saves nothing.
        trust_pickle: whether to read pickles with more than tensors and arrays, which can run code.
        strict: whether to raise an error if a file does not fill every tensor of the model.
        min_share: smallest share of the backbone's tensors, 0 to 1, that a file must fill. For
            ImageNet files, any value above 0 means 1.
        identity: facts about the training, such as class names, to save in each file.
        by_class: whether to match the rows of classifiers by class name, if both the file and
            ``identity`` have class names.
        average: module to save in place of ``model``; None saves ``model``.
        checkpointables: further objects to load and save, such as the optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        save_dir: str = "",
        *,
        trust_pickle: bool = False,
        strict: bool = False,
        min_share: float = 0.0,
        identity: dict[str, Any] | None = None,
        by_class: bool = False,
        average: nn.Module | None = None,
        **checkpointables: Any,
    ):
        super().__init__(model, save_dir, **checkpointables)
        self.trust_pickle = trust_pickle
        self.strict = strict
        self.min_share = min_share
        self.identity = identity
        self.by_class = by_class
        self.average = average
        # Facts about the last loaded file; None if unknown.
        self.fit: Fit | None = None
        self.record: Mapping[str, Any] | None = None  # settings that the file expects; also saved
        self.rows: Rows | None = None

    def load(self, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """
        Load a file into the model and ``checkpointables``; return the file's remaining entries.

        Raises:
            OSError: The file cannot be found or downloaded.
            UserError: The file is unreadable, does not fit the model, or contains NaN or infinity.
        """
        fetch_weights(path)
        self._path = path
        self._parsed_url_during_load = None  # a failed load leaves it set
        return super().load(path, *args, **kwargs)

    def save(self, name: str, *, tag: bool = True, keep: int = 0, **kwargs: Any) -> None:
        """
        Write a checkpoint file atomically.

        Args:
            name: name of the file, without its suffix.
            tag: whether the next ``--resume`` continues from this file.
            keep: number of numbered checkpoints to keep, including the new file; 0 keeps all.
            kwargs: further entries to write to the file.
        """
        if not self.save_dir or not self.save_to_disk:
            return
        data = {"model": (self.average or self.model).state_dict()}
        data |= {key: value.state_dict() for key, value in self.checkpointables.items()}
        known = {RECORD: self.record, IDENTITY: self.identity}
        data |= {**kwargs, **{key: value for key, value in known.items() if value}}
        path = Path(self.save_dir) / f"{name}.pth"
        self.logger.info("Saving checkpoint to %s", path)
        try:
            with replacing(path, durable=True) as temporary:
                torch.save(data, temporary)
            if tag:
                self.tag_last_checkpoint(path.name)
        except (OSError, RuntimeError) as e:  # PyTorch's writer raises RuntimeError on a full disk
            why = e if isinstance(e, OSError) else f"the disk is full or gone: {e}"
            raise OSError(
                f"The checkpoint {path} could not be written ({why}). The last whole one is "
                f"{last_checkpoint(self.save_dir) or 'none'}. Make room, or let the folder be "
                "written to, then --resume."
            ) from e
        if keep and NUMBERED.fullmatch(path.name):  # higher numbers belong to another run
            files = sorted(p for p in path.parent.glob("*.pth") if NUMBERED.fullmatch(p.name))
            for old in files[: files.index(path) + 1][:-keep]:
                old.unlink(missing_ok=True)

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        write_text(Path(self.save_dir) / "last_checkpoint", last_filename_basename, durable=True)

    def get_checkpoint_file(self) -> str:
        return last_checkpoint(self.save_dir)

    def remove_unfinished(self) -> None:
        """Remove temporary files that killed processes have left in the checkpoint folder."""
        for path in Path(self.save_dir).glob(".*.tmp"):
            if path.name.startswith((".model_", ".last_checkpoint")):
                path.unlink(missing_ok=True)

    def _load_file(self, filename: str) -> dict[str, Any]:
        checkpoint = read_checkpoint(filename, trust_pickle=self.trust_pickle)
        self.record = checkpoint.get(RECORD)
        return checkpoint

    def _load_model(self, checkpoint: dict[str, Any]) -> _IncompatibleKeys:
        if any("object_context_block" in name for name in checkpoint["model"]):
            raise UserError(
                f"The weights {self._path} are OCR weights of another code base: convert them with "
                "ocr-panoptic convert, see docs/checkpoints.md."
            )
        min_share, is_renamed = self.min_share, False
        weights = checkpoint["model"]
        if not self.strict:  # only training adapts the input channels
            weights = checkpoint["model"] = adapt_input_channels(weights, self.model)
        if not checkpoint.get("matching_heuristics"):
            checkpoint["model"], record = adapt_names(weights, self.model, self._path)
            self.record = record or self.record
            is_renamed = checkpoint["model"] is not weights
            if is_renamed and min_share:
                min_share = 1.0  # ImageNet weights of the same network fill the whole backbone
        self.rows = None
        theirs = (checkpoint.get(IDENTITY) or {}).get("classes") or zoo_classes(self._path)
        ours = (self.identity or {}).get("classes")
        if self.by_class and theirs and ours:
            own = self.model.state_dict()
            self.rows = rows_by_name(checkpoint["model"], own, theirs, ours)
            checkpoint["model"] = self.rows.weights
        incompatible = super()._load_model(checkpoint)
        self.fit = fit = Fit(self.model.state_dict(), incompatible)
        if len(fit.faults) == len(fit.names) or (self.strict and fit.faults):
            raise UserError(
                f"The weights {self._path} do not fit the model: {len(fit.faults)} of "
                f"{len(fit.names)} tensors.{fit.listing()}\n"
                "Use the config that the weights were trained with, or train from them first."
            )
        if (share := fit.backbone_share(statistics=is_renamed)) < min_share:
            raise UserError(
                f"The weights {self._path} are of another model: they fill "
                f"{share:.1%} of the backbone, expected {min_share:.0%}."
                f"\n{fit.table()}\nUse weights of this backbone (MODEL.BACKBONE, MODEL.RESNETS, "
                "MODEL.TIMM), or set MODEL.WEIGHTS_MIN_SHARE 0 to start from them all the same."
            )
        if what := not_finite(self.model):  # such a network's predictions are useless
            raise UserError(
                f"The weights {self._path} are broken: {what}. Take an earlier checkpoint of the "
                "run, or the file from where it came."
            )
        return incompatible

    def _log_incompatible_keys(self, incompatible: _IncompatibleKeys) -> None:
        if self.fit:  # for the log file only; users see the summary
            logger.debug("Not filled, not used:%s", self.fit.listing(lines=10**6) or " none")

    def summary(self) -> str:
        """Describe how the loaded file fits the model, with a table if the file lacks tensors."""
        if self.fit is None:
            return "No weights are loaded: the model is random"
        fit = self.fit
        filled = len(fit.names) - len(fit.faults)
        text = f"{self._path} fills {filled} of the model's {len(fit.names)} tensors"
        if fit.unused:
            text += f"; {len(fit.unused)} tensors of the file are not used"
        if self.rows and self.rows.new:
            text += (
                f"\nclasses   {', '.join(self.rows.kept) or 'none'} keep their rows of the "
                f"classifiers; {', '.join(self.rows.new)} start anew"
            )
        return f"{text}\n{fit.table()}" if fit.faults else text


def not_finite(model: nn.Module) -> str:
    """Describe the NaN and infinite values in a model; return "" if all values are finite."""
    counts = {name: int((~t.isfinite()).sum()) for name, t in model.state_dict().items()}
    found = {name: count for name, count in counts.items() if count}
    if not found:
        return ""
    name, count = next(iter(found.items()))
    others = f", and {len(found) - 1} other tensors have some" if len(found) > 1 else ""
    return f"{count:,} values of {name} are NaN or infinite{others}"


def last_checkpoint(folder: str | os.PathLike) -> str:
    """
    Return the path of the checkpoint named by the file ``last_checkpoint`` in a folder.

    If the file does not name a complete checkpoint, log a warning and return the newest complete
    checkpoint. Return "" if there is none, or if the folder's newest run has not saved one yet.
    """
    folder = Path(folder)
    tag = folder / "last_checkpoint"
    named = tag.read_text(errors="replace") if tag.is_file() else ""
    if named == NO_CHECKPOINT:
        return ""
    if RESUMABLE.fullmatch(named) and _is_whole(folder / named):
        return str(folder / named)
    newest = newest_whole(folder)
    if named or newest:
        logger.warning(
            f"{tag} names {named!r}, which is not a whole checkpoint; the newest whole one is "
            f"{newest or 'none'}"
        )
    return newest


def newest_whole(folder: str | os.PathLike) -> str:
    """Return the path of the newest complete checkpoint in a folder; "" if none exists."""
    files = (path for path in Path(folder).glob("*.pth") if RESUMABLE.fullmatch(path.name))
    newest_first = sorted(files, key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
    return next((str(path) for path in newest_first if _is_whole(path)), "")


def _is_whole(path: Path) -> bool:
    return path.is_file() and zipfile.is_zipfile(path)  # a zip file's directory is written last
