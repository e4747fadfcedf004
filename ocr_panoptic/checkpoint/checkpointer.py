"""A Detectron2 checkpointer that also reads published weights and untrusted files."""

import copy
import logging
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from detectron2.checkpoint import DetectionCheckpointer
from torch import nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import replacing, write_text

from .matching import Demands, Fit, Loaded, check_finite, check_fit, weights_for
from .reading import check_sums, fetch_weights, has_heuristics, read_checkpoint

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
        save_dir: local folder for the checkpoints; "" saves nothing.
        trust_pickle: whether to read pickles with more than tensors and arrays, which can run code.
        demands: what the weights of a file must fulfil; None for any weights that fit in part.
        entries: further entries of each saved file, such as the training's settings.
        checkpointables: further objects to load and save, such as the optimizer; or Detectron2's
            argument ``save_to_disk``.

    Attributes:
        loaded: facts about the last loaded file; None if there is none.
    """

    def __init__(
        self,
        model: nn.Module,
        save_dir: str = "",
        *,
        trust_pickle: bool = False,
        demands: Demands | None = None,
        entries: Mapping[str, Any] | None = None,
        **checkpointables: Any,
    ):
        if "://" in save_dir:  # only a local file can be replaced in one step
            raise UserError(
                f"The folder for checkpoints is {save_dir}; expected a folder on this machine. "
                "Set OUTPUT_DIR to a local folder, and copy the checkpoints afterwards."
            )
        super().__init__(model, save_dir, **checkpointables)
        self.trust_pickle = trust_pickle
        self.demands = demands or Demands()
        self.entries = dict(entries or {})
        self.loaded: Loaded | None = None

    def load(
        self,
        path: str,
        checkpointables: Iterable[str] | None = None,
        *,
        content: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """
        Load a file into the model and ``checkpointables``; return the file's remaining entries.

        Args:
            path: path or address of the file; "" loads nothing. After ``?matching_heuristics=True``
                Detectron2 matches the names of the tensors by their ends.
            checkpointables: names of the objects to load; None for all.
            content: content of the file, from :func:`.read_checkpoint`; None to read the file.

        Raises:
            OSError: The file cannot be found or downloaded.
            UserError: The file is unreadable, does not fit the model, or contains NaN or infinity.
        """
        self.loaded = None
        if not path:
            return {}
        self.logger.info("Loading the weights %s", path)
        file = fetch_weights(path, self.path_manager)
        check_sums(file)
        if content is None:
            content = self._load_file(file)
        if has_heuristics(path):
            content = {**content, "matching_heuristics": True}
        matched = weights_for(self.model, content, path, self.demands)
        # Detectron2's functions change their arguments.
        rest = {**content, "model": copy.copy(matched.weights)}
        fit = Fit(self.model.state_dict(), self._load_model(rest))
        differing = fit.listing(lines=10**6) or " none"
        logger.debug("Tensors that differ between the file and the model:%s", differing)
        check_fit(fit, path, self.demands, is_renamed=matched.is_renamed)
        check_finite(self.model.state_dict(), path)
        self.loaded = Loaded(path, fit, matched.record, matched.kept, matched.new)
        for key in self.checkpointables if checkpointables is None else checkpointables:
            if key in rest:
                self.checkpointables[key].load_state_dict(rest.pop(key))
        return rest

    def summary(self) -> str:
        """Describe how the loaded file fits the model, with a table if the file lacks tensors."""
        if self.loaded is None:
            return "No weights file; the model starts from random weights"
        return self.loaded.summary()

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
        data = {"model": self.model.state_dict()}
        data |= {key: value.state_dict() for key, value in self.checkpointables.items()}
        data |= {**self.entries, **kwargs}
        path = Path(self.save_dir) / f"{name}.pth"
        self.logger.info("Saving checkpoint to %s", path)
        try:
            with replacing(path, durable=True) as temporary:
                torch.save(data, temporary)
            if tag:
                self.tag_last_checkpoint(path.name)
        except (OSError, RuntimeError) as e:  # PyTorch's writer raises RuntimeError on a full disk
            why = e if isinstance(e, OSError) else f"the disk is full or disconnected: {e}"
            raise OSError(
                f"The checkpoint {path} could not be written ({why}). Last complete checkpoint: "
                f"{last_checkpoint(self.save_dir) or 'none'}. Free disk space or make the folder "
                "writable, then continue with --resume auto."
            ) from e
        if keep and NUMBERED.fullmatch(path.name):  # higher numbers belong to another run
            files = sorted(p for p in path.parent.glob("*.pth") if NUMBERED.fullmatch(p.name))
            for old in files[: files.index(path) + 1][:-keep]:
                old.unlink(missing_ok=True)

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        write_text(Path(self.save_dir) / "last_checkpoint", last_filename_basename, durable=True)

    def get_checkpoint_file(self) -> str:
        return last_checkpoint(self.save_dir)

    def has_checkpoint(self) -> bool:
        return bool(self.get_checkpoint_file())

    def remove_numbered(self, kept: str) -> None:
        """Remove a former run's numbered checkpoints, except the file ``kept``."""
        for path in Path(self.save_dir).glob("*.pth"):
            if NUMBERED.fullmatch(path.name) and path.resolve() != Path(kept).resolve():
                path.unlink()

    def remove_unfinished(self) -> None:
        """Remove temporary files that killed processes have left in the checkpoint folder."""
        for path in Path(self.save_dir).glob(".*.tmp"):
            if path.name.startswith((".model_", ".last_checkpoint")):
                path.unlink(missing_ok=True)

    def _load_file(self, filename: str) -> dict[str, Any]:
        return read_checkpoint(filename, trust_pickle=self.trust_pickle)


def last_checkpoint(folder: str | os.PathLike) -> str:
    """
    Return the path of the checkpoint named by the file ``last_checkpoint`` in a folder.

    If the file does not name a complete checkpoint, log a warning and return the newest complete
    checkpoint. Return "" if there is none, or if the folder's newest run has not saved one yet.
    """
    folder = Path(folder)
    tag = folder / "last_checkpoint"
    named = tag.read_text(errors="replace").strip() if tag.is_file() else ""
    if named == NO_CHECKPOINT:
        return ""
    if named.endswith(".pth") and Path(named).name == named and _is_whole(folder / named):
        return str(folder / named)
    newest = newest_whole(folder)
    if named or newest:
        instead = f"Using the newest complete checkpoint: {newest}" if newest else ""
        logger.warning(
            f"{tag} does not name a complete checkpoint (found {named!r}). "
            f"{instead or 'The folder has no complete checkpoint.'}"
        )
    return newest


def newest_whole(folder: str | os.PathLike) -> str:
    """Return the path of the newest complete checkpoint in a folder; "" if none exists."""
    files = (path for path in Path(folder).glob("*.pth") if RESUMABLE.fullmatch(path.name))
    newest_first = sorted(files, key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
    return next((str(path) for path in newest_first if _is_whole(path)), "")


def _is_whole(path: Path) -> bool:
    return path.is_file() and zipfile.is_zipfile(path)  # a zip file's directory is written last
