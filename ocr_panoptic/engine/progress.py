"""Progress of a training or an evaluation: a bar on a terminal, lines in a file."""

from collections.abc import Iterable, Iterator
from typing import Any

from detectron2.engine import HookBase, hooks
from detectron2.utils import comm
from detectron2.utils.events import EventWriter, get_event_storage
from tqdm import tqdm

from ocr_panoptic.errors import checked

from .console import has_terminal

WINDOW = 20  # iterations that a loss is the median of, as in Detectron2's lines


class ProgressLines(hooks.PeriodicWriter):
    """Detectron2's, whose first line comes with the first iteration instead of the ``period``-th:
    what is to be seen soon is that it runs, and with which losses."""

    def __init__(self, writers: list[EventWriter], period: int):
        super().__init__(writers, period)
        self._lines = writers[0]

    def after_step(self) -> None:
        done = self.trainer.iter + 1
        super().after_step()
        if done == self.trainer.start_iter + 1 and done % self._period and not self._is_last(done):
            self._lines.write()

    def after_train(self) -> None:
        if not self.trainer.storage.histories():  # the first iteration has failed
            self._writers = []
        super().after_train()

    def _is_last(self, done: int) -> bool:
        return done == self.trainer.max_iter


class ProgressBar(HookBase):
    """The losses and the time left, of the main process, where stderr is a terminal."""

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
        self._bar.close()


def _losses() -> str:
    """total 4.14, sem_seg 0.486, ..."""
    histories = get_event_storage().histories().items()
    names = {name: history.median(WINDOW) for name, history in histories if "loss" in name}
    values = {"total": names.pop("total_loss", float("nan")), **names}
    return ", ".join(f"{name.removeprefix('loss_')} {value:.3g}" for name, value in values.items())


class WatchedLoader:
    """A data loader of batches, whose mapper is a :class:`.Telling`; shows how much of it has been
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
        for batch in bar:
            yield [checked(example) for example in batch]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
