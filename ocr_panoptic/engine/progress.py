"""Progress of a training or an evaluation: a bar on a terminal, lines in a file."""

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from detectron2.engine import HookBase, hooks
from detectron2.utils import comm
from detectron2.utils.events import EventWriter, get_event_storage
from tqdm import tqdm

from ocr_panoptic.console import has_terminal
from ocr_panoptic.formats.files import naming

logger = logging.getLogger(__name__)

TIMED = 10  # iterations that the time left is told by
WINDOW = 20  # iterations that a loss is the median of, as in Detectron2's lines


class ProgressLines(hooks.PeriodicWriter):
    """
    Detectron2's, whose first line comes with the first iteration instead of the ``period``-th:
    what is to be seen soon is that it runs, and with which losses. A full disk is told with the
    folder's name, and once.

    Args:
        writers: of Detectron2; the first one writes the lines.
        period: iterations between two lines.
        folder: that the writers write to.
    """

    def __init__(self, writers: list[EventWriter], period: int, folder: str | os.PathLike):
        super().__init__(writers, period)
        self._folder = Path(folder)

    def after_step(self) -> None:
        done = self.trainer.iter + 1
        if done % self._period == 0 or done == self.trainer.max_iter:
            with naming(self._folder):
                super().after_step()
        elif done == self.trainer.start_iter + 1:
            self._writers[0].write()

    def after_train(self) -> None:
        """Write and close; after an error it is no news that writers cannot."""
        has_failed = isinstance(sys.exc_info()[1], Exception)
        has_content = bool(self.trainer.storage.histories())  # not if the first iteration failed
        for writer in self._writers:
            for end in (writer.write, writer.close) if has_content else (writer.close,):
                with suppress(Exception) if has_failed else naming(self._folder):
                    end()


class ProgressBar(HookBase):
    """The losses and the time left, of the main process, where stderr is a terminal."""

    _bar: tqdm | None = None  # none yet where another hook ends the training before it begins

    def before_train(self) -> None:
        self._bar = tqdm(
            total=self.trainer.max_iter,
            initial=self.trainer.start_iter,
            desc="train",
            unit="it",
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}% |{bar:20}| {n_fmt}/{total_fmt}, "
            "{remaining} left, {rate_fmt}{postfix}",
            disable=not has_terminal(),
        )

    def after_step(self) -> None:
        if not self._bar.disable:
            self._bar.set_postfix_str(_losses(), refresh=False)
            self._bar.update()

    def after_train(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _losses() -> str:
    """total 4.14, sem_seg 0.486, ..."""
    histories = get_event_storage().histories().items()
    names = {name: history.median(WINDOW) for name, history in histories if "loss" in name}
    values = {"total": names.pop("total_loss", float("nan")), **names}
    return ", ".join(f"{name.removeprefix('loss_')} {value:.3g}" for name, value in values.items())


class TimeLeft(HookBase):
    """Says once, after the first iterations in this process, how long the rest will take."""

    def before_train(self) -> None:
        self._ends = [time.perf_counter()]

    def after_step(self) -> None:
        if len(self._ends) <= TIMED:
            self._ends.append(time.perf_counter())
            if len(self._ends) > TIMED:
                each = median(b - a for a, b in pairwise(self._ends))
                rest = self.trainer.max_iter - self.trainer.iter - 1
                logger.info(
                    "%.3g s an iteration: about %s left, evaluations not counted",
                    *(each, duration(each * rest)),
                )


def duration(seconds: float) -> str:
    """Return such as "50 s", "12 min" or "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class WatchedLoader:
    """A data loader of batches; shows how much of it has been
    read, in the main process on a terminal."""

    def __init__(self, loader: Iterable[Any], title: str):
        self._loader = loader
        self._title = title

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        hidden = not (has_terminal() and comm.is_main_process())
        bar = tqdm(
            self._loader,
            desc=self._title,
            unit="batch",
            dynamic_ncols=True,
            leave=False,
            disable=hidden,
        )
        yield from bar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
