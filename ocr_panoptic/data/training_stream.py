"""The training images, and the sequence of their batches, which can start anywhere."""

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
    """Return the records that training draws from; ``log``: log the instances of each class."""
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

    It depends only on the data, the seed and the number of processes. Unlike Detectron2's loader,
    it depends neither on the number of workers nor on the batches they have prefetched: the random
    generators are seeded for each image by its position in the sequence. So earlier images need not
    be loaded. Without grouping by aspect ratio, the images of each step and their augmentation do
    not depend on the number of processes either.

    Args:
        sampler: endless indices of this process's images, the same in every iteration.
        mapper: function that makes the model's input from a record.
        batch_size: number of images in all processes.
        group: whether to separate batches of wide images from batches of other images.
        workers: number of processes that load images; 0 for none.
        device: device of the examples' tensors. Detectron2's ``Instances`` stay on the CPU, since
            its models move them.

    Attributes:
        seen: number of images, in all processes, to skip at the start of the sequence; a multiple
            of the batch size.
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
        if isinstance(records, list):  # one piece of memory, which the workers share
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
                # At least two batches ahead.
                prefetch_factor=max(2, -(-2 * size // self.workers)) if self.workers else None,
                collate_fn=trivial_batch_collator,
                worker_init_fn=begin_worker,
                generator=torch.Generator(),  # else its seeds would change the training's generator
                pin_memory=self.device.type == "cuda",
            )
        )
        # From pinned memory, two images of COCO (7.4 MiB) take a GPU 0.3 ms in a step of hundreds.
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
    """Return the batches of DATASETS.TRAIN, drawn by Detectron2's samplers of DATALOADER."""
    seed = run_seed(cfg)
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SEED = seed
    records = training_records(cfg, log=True)
    with seeded_generators(seed):  # Detectron2's samplers draw their seeds from them
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
    """Return the sampler that repeats semantic images with rare classes; None for other configs."""
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
    """Return cfg.SEED, or a random number that all processes share if it is negative."""
    return cfg.SEED if cfg.SEED >= 0 else comm.shared_random_seed()


class _Examples(Dataset):
    """Mapped records, for which the random generators are seeded by position in the sequence."""

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
    """
    Raise a loading process's error without its traceback, and explain why a process has ended.

    PyTorch reports an ended process by a signal handler, at any line of the trainer.
    """
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        signs = ("DataLoader worker (pid", "Too many open files", "shared memory", "mmap")
        if any(sign in str(error) for sign in signs):  # a process cannot open a tensor
            raise UserError(
                f"A process that loads images has ended, or its images cannot be taken over "
                f"({_own_words(error)}). If shared memory is full (`df -h /dev/shm`), start a "
                "container with --shm-size 16g or --ipc=host; if files are too few (`ulimit -n`), "
                "raise that limit; if memory is full, lower DATALOADER.NUM_WORKERS. "
                "DATALOADER.NUM_WORKERS 0 needs none of them."
            ) from error
        if not str(error).startswith("Caught ") or isinstance(error, RuntimeError):
            raise  # this process's error, or a bug whose traceback the message has
        text = _own_words(error)
        system = re.fullmatch(r"\[Errno (\d+)\] ([^:]*)(?:: ['\"](.*)['\"])?", text)
        raise type(error)(*(int(system[1]), *system.groups()[1:]) if system else (text,)) from error


def _own_words(error: Exception) -> str:
    """Return the message of an error without PyTorch's traceback before it."""
    return str(error).rpartition(f"{type(error).__name__}: ")[2].strip()


def begin_worker(worker: int) -> None:
    """
    Let a process that loads training images ignore a Ctrl-C or a SIGTERM to all processes.

    The trainer needs images to finish its iteration, and ends its workers by its own SIGTERM.
    DataLoader's handler would end them at any SIGTERM, and the trainer with an error.
    """
    end_if_an_image_is_lost(worker)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def end_if_an_image_is_lost(worker: int) -> None:
    """
    Let a process of a ``DataLoader`` end if it cannot pass on an image because /dev/shm is full.

    Python would print the error and go on, and the trainer would wait for the image for ever.
    """
    queue: Any = multiprocessing.queues.Queue  # its types leave out the hook
    queue._on_queue_feeder_error = staticmethod(_end_without_image)


def _end_without_image(error: Exception, example: Any) -> None:
    print(f"ERROR: an image cannot be passed on: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def _end_with(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
