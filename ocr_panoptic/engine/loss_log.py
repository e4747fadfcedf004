"""The losses of all processes: in the log, and finite."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage
from torch import Tensor


class Diverged(FloatingPointError):
    """A loss or a weight of a training is infinite or NaN."""


class _Row(NamedTuple):
    """The losses of an iteration in one process."""

    iteration: int
    names: list[str]
    values: Tensor
    data_time: float
    images: list[str]
    copied: torch.cuda.Event | None

    def losses(self) -> list[float]:
        if self.copied:
            self.copied.synchronize()
        return self.values.tolist()

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.losses()))


class LossLog:
    """
    Writes the losses, their mean over the processes, to Detectron2's event storage under the names
    that its ``SimpleTrainer`` has.

    They are looked at when those of the next iteration are added: by then a GPU has work to go on
    with while the CPU waits for them.

    Args:
        period: iterations that processes exchange at once.
    """

    def __init__(self, period: int = 1):
        self.period = period
        self._pending: list[_Row] = []

    def add(
        self,
        iteration: int,
        names: list[str],
        losses: Tensor,
        data_time: float,
        images: list[str],
    ) -> None:
        """
        Args:
            names: of the losses, the same in every process and iteration.
            losses: of this process, [number], without gradients.
            data_time: seconds that the images took.
            images: their file names.

        Raises:
            Diverged: as :meth:`flush`, of the iterations before.
        """
        copied = torch.cuda.Event() if _is_on_gpu(losses) else None
        values = losses.float().to("cpu", non_blocking=copied is not None)  # to pinned memory
        if copied:
            copied.record(torch.cuda.current_stream(losses.device))
        if iteration % self.period == 0:
            self.flush()
        self._pending.append(_Row(iteration, names, values, data_time, images, copied))

    def look(self) -> None:
        """
        Raises:
            Diverged: in this process, where one of its losses was infinite or NaN.
        """
        for row in self._pending:
            if not row.is_finite:
                raise Diverged(_describe(row, {comm.get_rank(): _said(row)}))

    def flush(self) -> None:
        """
        Exchange and write what has been added. All processes call it in the same iteration.

        Raises:
            Diverged: in all processes, where a loss of one was infinite or NaN.
        """
        rows, self._pending = self._pending, []
        if not rows:
            return
        own = [[*row.losses(), row.data_time] for row in rows]
        for row, *of_processes in zip(rows, *_gathered(own)):
            if not all(math.isfinite(value) for values in of_processes for value in values):
                said = dict(enumerate(comm.all_gather(_said(row))))
                raise Diverged(_describe(row, said))
            if comm.is_main_process():
                _write(row, of_processes)


def with_advice(error: Diverged, cfg: CfgNode, is_scaled: bool, last: str) -> Diverged:
    """
    Return the error with what to do.

    Args:
        is_scaled: whether the loss is, for float16.
        last: the last whole checkpoint, or "".
    """
    solver = cfg.SOLVER
    advice = [f"SOLVER.BASE_LR below {solver.BASE_LR:g}"]
    advice.append(f"SOLVER.WARMUP_ITERS above {solver.WARMUP_ITERS}")
    if not solver.CLIP_GRADIENTS.ENABLED:
        advice.append("SOLVER.CLIP_GRADIENTS.ENABLED True")
    if is_scaled:
        advice.append("SOLVER.AMP.PRECISION bfloat16")
    return Diverged(
        f"{error}\nThe last whole checkpoint is {last or 'none'}. Look at these images and their "
        f"labels; else {'continue with --resume' if last else 'begin again'} and try "
        f"{', '.join(advice[:-1])} or {advice[-1]}."
    )


def _is_on_gpu(values: Tensor) -> bool:
    return values.is_cuda


def _gathered(own: list[list[float]]) -> list[list[list[float]]]:
    """Return the same of all processes, in one message."""
    if comm.get_world_size() == 1:
        return [own]
    values = torch.tensor(own, dtype=torch.float64)
    found = [torch.empty_like(values) for _ in range(comm.get_world_size())]
    dist.all_gather(found, values, group=comm._get_global_gloo_group())
    return [one.tolist() for one in found]


def _said(row: _Row) -> str:
    """The losses of a process and, where one is not finite, its images."""
    text = ", ".join(f"{name} {value:.6g}" for name, value in zip(row.names, row.losses()))
    if row.is_finite:
        return text
    return f"{text}\n    of the images {', '.join(row.images) or '(unnamed)'}"


def _describe(row: _Row, said: Mapping[int, str]) -> str:
    lines = [f"  process {process}: {text}" for process, text in said.items()]
    return "\n".join([f"A loss is not finite in iteration {row.iteration}:", *lines])


def _write(row: _Row, of_processes: list[list[float]]) -> None:
    storage, iteration = get_event_storage(), row.iteration
    *losses, data_times = zip(*of_processes)
    means = [sum(values) / len(values) for values in losses]
    storage.put_scalar("rank_data_time", data_times[0], cur_iter=iteration)
    storage.put_scalar("data_time", max(data_times), cur_iter=iteration)
    storage.put_scalar("total_loss", sum(means), cur_iter=iteration)
    if len(means) > 1:
        storage.put_scalars(cur_iter=iteration, **dict(zip(row.names, means)))
