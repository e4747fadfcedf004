"""Processes that go on together, or stop together and say why."""

import contextlib
import platform
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from detectron2.utils import comm

from ocr_panoptic.errors import UserError
from ocr_panoptic.program import leave_to_main, reason


@contextlib.contextmanager
def stop_together() -> Iterator[None]:
    """
    Wait at the end of the block until all processes are there. Where one of them failed, none goes
    on: the others would wait for it until the timeout. The block must not exchange anything between
    processes.

    Raises:
        ValueError: in the processes that did not fail, with the reasons of those that did, which
            raise their own errors.
    """
    error = None
    try:
        yield
    except Exception as e:
        error = e
    if dist.is_initialized():
        why = error and reason(error)
        faults = comm.all_gather(error and (_here(), why))
        is_said = faults[0] is None or why in (None, faults[0][1])  # by the main process
        if error is None and any(faults):
            # Mostly all fail alike, and one reason says it.
            faults = {why: where for where, why in filter(None, reversed(faults))}
            listed = "\n  ".join(f"{where}: {why}" for why, where in faults.items())
            error = UserError(
                f"Another process stopped, and this one with it.\n  {listed}\n"
                "What only some of them have not found has to be on storage that machines share."
            )
        if error is not None and is_said:
            leave_to_main(error)
    if error is not None:
        raise error


def agree(values: Mapping[str, object]) -> None:
    """
    Make sure that all processes have the same values.

    Args:
        values: name -> value with equality, of one type and the same names everywhere.

    Raises:
        ValueError: in all processes, naming what differs, and where.
    """
    if not dist.is_initialized():
        return
    found = comm.all_gather((_here(), dict(values)))
    faults = []
    for name, value in found[0][1].items():
        others = [(where, other[name]) for where, other in found if other[name] != value]
        if others:
            where, other = others[0]
            faults.append(f"{name}: {value!r} in {found[0][0]}, {other!r} in {where}")
    if faults:
        error = UserError(
            "The processes do not agree.\n  " + "\n  ".join(faults) + "\nStart them with the same "
            "arguments, and with data and OUTPUT_DIR on storage that all machines share."
        )
        leave_to_main(error)
        raise error


class Poll:
    """Asks all processes for a number in each iteration. The answer comes in the next one, when it
    has been there for long: nobody waits for it."""

    def __init__(self):
        self._asked: tuple[dist.Work, torch.Tensor] | None = None

    def largest(self, number: int) -> int:
        """
        All processes call it in the same iterations.

        Returns:
            of several processes the largest number of the call before, 0 in the first; of one
            process its own
        """
        if comm.get_world_size() == 1:
            return number
        found, asked = torch.tensor(int(number)), self._asked
        group = comm._get_global_gloo_group()
        self._asked = dist.all_reduce(found, dist.ReduceOp.MAX, group, async_op=True), found
        if asked is None:
            return 0
        asked[0].wait()
        return int(asked[1])


def _here() -> str:
    return f"process {comm.get_rank()} ({platform.node()})"
