"""Load training images as an endless sequence of batches that can be resumed at any batch."""

import multiprocessing.queues
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog, get_detection_dataset_dicts
from detectron2.data.build import _train_loader_from_config, trivial_batch_collator
from detectron2.data.common import DatasetFromList
from detectron2.data.samplers import RepeatFactorTrainingSampler
from detectron2.utils import comm
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset, Sampler

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import VOID_LABEL
from ocr_panoptic.formats.labels import label_areas, read_true_labels
from ocr_panoptic.formats.pictures import COLOURS, header_size
from ocr_panoptic.progress import imap_with_progress
from ocr_panoptic.seeding import seeded_generators

_Key = tuple[int, int]  # position in the sequence of all processes, index of the record


def training_records(cfg: CfgNode, *, log: bool = False) -> list[dict]:
    """Return the records of DATASETS.TRAIN; if ``log``, log the number of instances per class."""
    names, usable = cfg.DATASETS.TRAIN, cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS
    try:
        return get_detection_dataset_dicts(names, usable, check_consistency=log)
    except AssertionError as error:
        raise UserError(
            f"{', '.join(names)}: {error} Perhaps all instances are crowds: "
            "DATALOADER.FILTER_EMPTY_ANNOTATIONS False also uses images without instances."
        ) from error


class TrainingStream:
    """
    An endless sequence of batches that can be resumed at any batch.

    The images and augmentations of each step depend only on the data, the seed, the batch size and,
    if images are grouped by aspect ratio, the number of processes. The number of workers has no
    effect. A resumed stream skips images without loading them.

    Args:
        sampler: endless record indices for this process; ``iter()`` must restart the sequence.
        batch_size: number of images per step, in all processes together.
        group: whether to group images, so that a batch never mixes wide images with others.
        device: device of the examples' tensors; ``Instances`` stay on the CPU.

    Attributes:
        seen: number of images, in all processes together, to skip at the start of the sequence;
            a multiple of the batch size.
    """

    def __init__(
        self,
        records: Sequence[dict],
        sampler: Iterable[int],
        mapper: Callable[[dict], Any],
        *,
        batch_size: int,
        group: bool,
        workers: int,
        seed: int,
        channels: int = COLOURS,
        device: str = "cpu",
    ):
        self.sampler = sampler
        self.batch_size = batch_size
        self.wide = [_is_wide(records[k], channels) for k in range(len(records))] if group else None
        self.workers = workers
        self.device = torch.device(device)
        if isinstance(records, list):  # one block of memory, which the workers share
            records = DatasetFromList(records, copy=False)
        self.examples = _Examples(records, mapper, seed)
        self.seen = 0

    def __iter__(self) -> Iterator[list]:
        size = self.batch_size // comm.get_world_size()
        batches = islice(self._batches(size), self.seen // self.batch_size, None)
        loader = iter(
            DataLoader(
                self.examples,
                sampler=chain.from_iterable(batches),
                batch_size=None,
                num_workers=self.workers,
                # Load at least two batches ahead.
                prefetch_factor=max(2, -(-2 * size // self.workers)) if self.workers else None,
                collate_fn=trivial_batch_collator,
                worker_init_fn=begin_worker,
                generator=torch.Generator(),  # else it would draw from the training run's generator
                pin_memory=self.device.type == "cuda",
            )
        )
        # Copying two images of COCO (7.4 MiB) from pinned memory to a GPU takes only 0.3 ms.
        move = partial(Tensor.to, device=self.device, non_blocking=True)
        while True:
            yield [tree_map_only(Tensor, move, example) for example in islice(loader, size)]

    def _batches(self, size: int) -> Iterator[list[_Key]]:
        keys = zip(count(comm.get_rank(), comm.get_world_size()), self.sampler)
        groups: tuple[list[_Key], list[_Key]] = [], []
        for key in keys:
            group = groups[self.wide[key[1]] if self.wide else 0]
            group.append(key)
            if len(group) == size:
                yield group[:]
                group.clear()


def build_training_stream(
    cfg: CfgNode, mapper: Callable[[dict], Any], device: str = "cpu"
) -> TrainingStream:
    """Return the stream of batches of DATASETS.TRAIN, with the sampler that DATALOADER names."""
    seed = run_seed(cfg)
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SEED = seed
    records = training_records(cfg, log=True)
    with seeded_generators(seed):  # Detectron2's samplers draw their seeds here
        sampler = _sampler_by_labels(cfg, records)
        parts = _train_loader_from_config(cfg, mapper=mapper, dataset=records, sampler=sampler)
    return TrainingStream(
        parts["dataset"],
        parts["sampler"],
        mapper,
        batch_size=parts["total_batch_size"],
        group=parts["aspect_ratio_grouping"],
        workers=parts["num_workers"],
        seed=seed,
        channels=cfg.INPUT.CHANNELS,
        device=device,
    )


def _sampler_by_labels(cfg: CfgNode, records: Sequence[dict]) -> Sampler | None:
    loader = cfg.DATALOADER
    if loader.SAMPLER_TRAIN != "RepeatFactorTrainingSampler" or "annotations" in records[0]:
        return None
    maps = {name: MetadataCatalog.get(name).get("label_map") for name in cfg.DATASETS.TRAIN}
    look = partial(_classes_shown, label_maps=maps)
    shown = imap_with_progress(look, records, "classes of each image")
    # Detectron2 reads the classes of an image from its instances.
    images = [{"annotations": [{"category_id": k} for k in classes]} for classes in shown]
    factors = RepeatFactorTrainingSampler.repeat_factors_from_category_frequency(
        images, loader.REPEAT_THRESHOLD, sqrt=loader.REPEAT_SQRT
    )
    return RepeatFactorTrainingSampler(factors, seed=cfg.SEED)


def _classes_shown(record: dict, label_maps: dict[str, dict | None]) -> list[int]:
    found = label_areas(read_true_labels(record, label_maps.get(record.get("dataset_name", ""))))
    return [label for label in found if label != VOID_LABEL]


def run_seed(cfg: CfgNode) -> int:
    """Return cfg.SEED; if it is negative, return a random seed that all processes share."""
    return cfg.SEED if cfg.SEED >= 0 else comm.shared_random_seed()


class _Examples(Dataset):
    def __init__(self, records: Sequence[dict], mapper: Callable[[dict], Any], seed: int):
        self.records = records
        self.mapper = mapper
        self.seed = seed

    def __getitem__(self, key: _Key) -> Any:
        position, index = key
        with seeded_generators(self.seed, position):
            return self.mapper(self.records[index])


def _is_wide(record: dict, channels: int) -> bool:
    if "width" in record:
        return record["width"] > record["height"]
    try:
        size = header_size(record["file_name"], channels)
    except ValueError as e:
        raise UserError(f"{record['file_name']}: the image {e}") from e
    return size.width > size.height


@contextmanager
def explained_workers() -> Iterator[None]:
    """In a ``with`` block, shorten and explain errors that come from image-loading processes."""
    try:
        yield  # any line can fail: PyTorch raises the error in a signal handler
    except (RuntimeError, ValueError, OSError) as error:
        signs = ("DataLoader worker (pid", "Too many open files", "shared memory", "mmap")
        if any(sign in str(error) for sign in signs):  # a tensor cannot be passed on
            raise UserError(
                f"A process that loads images has ended, or its images cannot be taken over "
                f"({_own_words(error)}). If shared memory is full (`df -h /dev/shm`), start a "
                "container with --shm-size 16g or --ipc=host; if files are too few (`ulimit -n`), "
                "raise that limit; if memory is full, lower DATALOADER.NUM_WORKERS. "
                "DATALOADER.NUM_WORKERS 0 needs none of them."
            ) from error
        if not str(error).startswith("Caught ") or isinstance(error, RuntimeError):
            raise  # an error of this process, or a bug, whose message has the traceback
        text = _own_words(error)
        system = re.fullmatch(r"\[Errno (\d+)\] ([^:]*)(?:: ['\"](.*)['\"])?", text)
        raise type(error)(*(int(system[1]), *system.groups()[1:]) if system else (text,)) from error


def _own_words(error: Exception) -> str:
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
    print(f"ERROR: an image cannot be passed on: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def _end_with(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
