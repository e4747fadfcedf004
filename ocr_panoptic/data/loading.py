"""Load the images of an evaluation; start and end the processes that load images."""

import multiprocessing.queues
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from detectron2.config import CfgNode
from detectron2.data import MapDataset, get_detection_dataset_dicts
from detectron2.data.build import trivial_batch_collator
from detectron2.data.common import DatasetFromList
from detectron2.data.samplers import InferenceSampler
from torch.utils.data import DataLoader

from ocr_panoptic.errors import UserError


def build_test_loader(
    cfg: CfgNode, dataset_name: str, mapper: Callable[[dict], dict[str, Any]]
) -> DataLoader:
    """
    Return a loader that yields each image of a data set once, as a batch of one mapped record.

    It is Detectron2's ``build_detection_test_loader``, except that a process that cannot send an
    image ends instead of leaving the evaluation to wait.
    """
    records = get_detection_dataset_dicts(dataset_name, filter_empty=False)
    return DataLoader(
        MapDataset(DatasetFromList(records, copy=False), mapper),
        batch_size=1,
        sampler=InferenceSampler(len(records)),
        num_workers=cfg.DATALOADER.NUM_WORKERS,
        collate_fn=trivial_batch_collator,
        worker_init_fn=end_if_an_image_is_lost,
    )


@contextmanager
def explained_workers() -> Iterator[None]:
    """In a ``with`` block, shorten and explain errors that come from image-loading processes."""
    try:
        yield  # any line can fail: PyTorch raises the error in a signal handler
    except (RuntimeError, ValueError, OSError) as error:
        signs = ("DataLoader worker (pid", "Too many open files", "shared memory", "mmap")
        if any(sign in str(error) for sign in signs):  # a tensor cannot be passed on
            raise UserError(
                "An image-loading process ended, or its images could not be passed to the main "
                f"process ({_original_message(error)}). If shared memory is full (`df -h "
                "/dev/shm`), start the container with --shm-size 16g or --ipc=host. If too many "
                "files are open (`ulimit -n`), raise the limit. If memory is full, lower "
                "DATALOADER.NUM_WORKERS. DATALOADER.NUM_WORKERS 0 avoids all of these problems."
            ) from error
        if not str(error).startswith("Caught ") or isinstance(error, RuntimeError):
            raise  # an error of this process, or a bug, whose message has the traceback
        text = _original_message(error)
        system = re.fullmatch(r"\[Errno (\d+)\] ([^:]*)(?:: ['\"](.*)['\"])?", text)
        raise type(error)(*(int(system[1]), *system.groups()[1:]) if system else (text,)) from error


def _original_message(error: Exception) -> str:
    return str(error).rpartition(f"{type(error).__name__}: ")[2].strip()


def begin_worker(worker: int) -> None:
    """
    Make an image-loading process ignore Ctrl-C and SIGHUP, and obey SIGTERM only from the trainer.

    If a signal reaches all processes, the trainer still needs images to finish its iteration.
    """
    end_if_an_image_is_lost(worker)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def end_if_an_image_is_lost(worker: int) -> None:
    """
    Make an image-loading process exit if it cannot send an image, e.g. if /dev/shm is full.

    By default, the process only prints the error, and the trainer waits for the image forever.
    """
    queue: Any = multiprocessing.queues.Queue  # type stubs lack the hook
    queue._on_queue_feeder_error = staticmethod(_end_without_image)


def _end_without_image(error: Exception, example: Any) -> None:
    print(f"ERROR: cannot send an image to the main process: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def _end_with(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
