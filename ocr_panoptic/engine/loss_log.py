"""The losses of all processes: in the log, and finite."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage


class _Row(NamedTuple):
    """The losses of an iteration in one process."""

    iteration: int
    losses: dict[str, float]
    data_time: float
    images: list[str]

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.losses.values()))


class LossLog:
    """
    Writes the losses, their mean over the processes, to Detectron2's event storage under the names
    that its ``SimpleTrainer`` has.

    Args:
        period: iterations that are exchanged at once. Each exchange waits for the GPU.
    """

    def __init__(self, period: int = 1):
        self.period = period
        self._pending: list[tuple[int, dict[str, torch.Tensor], float, list[str]]] = []

    def add(
        self,
        iteration: int,
        losses: Mapping[str, torch.Tensor],
        data_time: float,
        images: Iterable[str],
    ) -> None:
        """
        Args:
            losses: of this process, scalars; the same names in every process and iteration.
            data_time: seconds that the images took.
            images: their file names.

        Raises:
            FloatingPointError: as :meth:`flush`.
        """
        detached = {name: loss.detach() for name, loss in losses.items()}
        self._pending.append((iteration, detached, data_time, list(images)))
        if (iteration + 1) % self.period == 0:
            self.flush()

    def flush(self) -> None:
        """
        Exchange and write what has been added. All processes call it in the same iteration.

        Raises:
            FloatingPointError: in all processes, where a loss of one was infinite or NaN.
        """
        if not self._pending:
            return
        scalars = [loss.float() for _, losses, _, _ in self._pending for loss in losses.values()]
        values = iter(torch.stack(scalars).tolist())  # waits once
        rows = []
        for iteration, losses, data_time, images in self._pending:
            row = _Row(iteration, {name: next(values) for name in losses}, data_time, images)
            rows.append(row if not row.is_finite else row._replace(images=[]))
        self._pending.clear()
        for of_processes in zip(*comm.all_gather(rows)):
            if not all(row.is_finite for row in of_processes):
                raise FloatingPointError(_describe(of_processes))
            if comm.is_main_process():
                _write(of_processes)


def _describe(rows: Iterable[_Row]) -> str:
    lines = []
    for process, row in enumerate(rows):
        losses = ", ".join(f"{name} {value:.6g}" for name, value in row.losses.items())
        lines.append(f"  process {process}: {losses}")
        if not row.is_finite:
            lines.append(f"    of the images {', '.join(row.images) or '(unnamed)'}")
    return f"A loss is not finite in iteration {row.iteration}:\n" + "\n".join(lines)


def _write(rows: tuple[_Row, ...]) -> None:
    storage, iteration = get_event_storage(), rows[0].iteration
    losses = {name: np.mean([row.losses[name] for row in rows]) for name in rows[0].losses}
    storage.put_scalar("rank_data_time", rows[0].data_time, cur_iter=iteration)
    storage.put_scalar("data_time", max(row.data_time for row in rows), cur_iter=iteration)
    storage.put_scalar("total_loss", sum(losses.values()), cur_iter=iteration)
    if len(losses) > 1:
        storage.put_scalars(cur_iter=iteration, **losses)
