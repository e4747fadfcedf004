"""The images of a training: their records, read from the indices of its data sets, each when its
image is loaded; and the sequence of their batches, which can be entered anywhere.

Detectron2 makes the records of all images at every start, in every process, and pickles each.
"""

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.build import _train_loader_from_config, print_instances_class_histogram
from detectron2.data.common import DatasetFromList
from detectron2.data.detection_utils import check_metadata_consistency
from detectron2.utils import comm
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset

from ocr_panoptic.errors import UserError, is_user_error
from ocr_panoptic.formats.pictures import COLOURS, header_size
from ocr_panoptic.seeding import seeded_generators

from .panoptic.source import PanopticSource, kinds_of

logger = logging.getLogger(__name__)

_LABELS = "sem_seg"  # of an example: int64 [H, W]
_Key = tuple[int, int]  # position in the sequence of all processes, index of the record


class IndexedRecords(Dataset):
    """Records of panoptic data sets, one after the other.

    Args:
        usable: without images that have no annotation but crowds.

    Attributes:
        wide: bool [N], the image is wider than high.
    """

    def __init__(self, sources: Sequence[PanopticSource], usable: bool):
        self._sources = [(source, source.index()) for source in sources]
        self._kinds = [kinds_of(source.categories(index)) for source, index in self._sources]
        kept = [
            np.flatnonzero(np.array(index.column("usable"), bool) | (not usable))
            for _, index in self._sources
        ]
        wide = [np.array(index.column("wide"), bool) for _, index in self._sources]
        self.total = sum(map(len, wide))
        self._source = np.repeat(np.arange(len(sources)), list(map(len, kept)))
        self._place = np.concatenate(kept)
        self.wide = np.concatenate([w[places] for w, places in zip(wide, kept, strict=True)])

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, number: int) -> dict:
        k = self._source[number]
        source, index = self._sources[k]
        return source.record(index.record(int(self._place[number])), self._kinds[k])

    def instances(self) -> Counter[int]:
        """Return how many there are of each class, crowds not counted."""
        found: Counter[int] = Counter()
        for source, index in self._sources:
            found += source.instances(index)
        return found


def indexed_records(names: Sequence[str], usable: bool) -> IndexedRecords | None:
    """
    The records that ``get_detection_dataset_dicts(names, usable)`` returns, after the same checks
    and tables; None where a data set has no index.

    Raises:
        FileNotFoundError, ValueError: as :class:`.Index`; ValueError also where no image is left.
    """
    sources = [DatasetCatalog.data.get(name) for name in names]
    if not sources or not all(isinstance(source, PanopticSource) for source in sources):
        return None
    records = IndexedRecords(sources, usable)
    left_out = records.total - len(records)
    if left_out:
        logger.info(
            f"Left out {left_out} images with no annotation but crowds, {len(records)} left"
        )
    if not len(records):
        raise UserError(
            f"{', '.join(names)}: no image has an instance that is no crowd. "
            "DATALOADER.FILTER_EMPTY_ANNOTATIONS False uses them all the same."
        )
    check_metadata_consistency("thing_classes", names)
    counted = [
        {"annotations": [{"category_id": label}] * times}
        for label, times in records.instances().items()
    ]
    print_instances_class_histogram(counted, MetadataCatalog.get(names[0]).thing_classes)
    return records


class TrainingStream:
    """
    An endless sequence of batches that follows from the data, the seed and the number of processes
    alone. Unlike Detectron2's loader it depends neither on the number of workers nor on what they
    have prefetched: the random generators are seeded for each image by its position in the
    sequence. So it can be entered at any batch, without loading the images before it.

    Without grouping by aspect ratio the images of each step, and their augmentation, are those of
    any other number of processes, too.

    Args:
        records: of the data set, map-style.
        sampler: endless indices of this process's images, the same whenever it is iterated.
        mapper: from a record to the model's input.
        batch_size: of all processes.
        group: put images that are wider than high, and the others, into batches of their own.
        workers: processes that load images; 0 for none.
        seed: nonnegative.
        channels: of the images, INPUT.CHANNELS.
        device: where the tensors of the examples are wanted, MODEL.DEVICE. No copy to a GPU is
            waited for. Detectron2's ``Instances`` stay where they are: its models move them.

    Attributes:
        seen: images of all processes at the start of the sequence that are left out; whole batches.
    """

    def __init__(
        self,
        records: Sequence[dict] | Dataset,
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
        self.wide = _wide(records, channels) if group else None
        self.workers = workers
        self.device = torch.device(device)
        if isinstance(records, list):  # in one piece of memory, which the workers share
            records = DatasetFromList(records, copy=False)
        self.examples = _Examples(records, Telling(mapper), seed)
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
                collate_fn=_identity,
                worker_init_fn=leave_signals_to_the_trainer,
                generator=torch.Generator(),  # else its seeds are drawn from the training's
                pin_memory=self.device.type == "cuda",
            )
        )
        while True:
            # Not a batch ahead on a stream of its own: two images of COCO, 7.4 MiB, take a GPU 0.3
            # ms at 25 GB/s, of a step of hundreds. They wait for it in pinned memory.
            yield [on_device(checked(example), self.device) for example in islice(loader, size)]

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
    cfg: CfgNode,
    mapper: Callable[[dict], Any],
    records: IndexedRecords | list[dict] | None = None,
    device: str = "cpu",
) -> TrainingStream:
    """
    Args:
        records: those of DATASETS.TRAIN, where they have been read already.
        cfg: its DATASETS.TRAIN, DATALOADER and SOLVER.IMS_PER_BATCH, as Detectron2 reads them, and
            the seed of order and augmentation, :func:`run_seed`.
        device: see :class:`TrainingStream`.

    Raises:
        ValueError: the data set has no order of its own (an ``IterableDataset``).
    """
    seed = run_seed(cfg)
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SEED = seed
    with seeded_generators(seed):  # from which Detectron2's samplers draw their seeds
        parts = _train_loader_from_config(cfg, mapper=mapper, dataset=records)
    if parts["sampler"] is None:
        raise UserError(
            f"DATASETS.TRAIN {cfg.DATASETS.TRAIN} is an IterableDataset, which cannot be entered "
            "where a training was left. Register a list of records, or a Dataset with __getitem__."
        )
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


def run_seed(cfg: CfgNode) -> int:
    """cfg.SEED, or a random number that all processes share where it is negative."""
    return cfg.SEED if cfg.SEED >= 0 else comm.shared_random_seed()


class _Examples(Dataset):
    """Mapped records, the random generators seeded by the position at which each is used."""

    def __init__(self, records: Dataset, mapper: Callable[[dict], Any], seed: int):
        self.records = records
        self.mapper = mapper
        self.seed = seed

    def __getitem__(self, key: _Key) -> Any:
        position, index = key
        with seeded_generators(self.seed, position):
            return packed(self.mapper(self.records[index]))


class Told(NamedTuple):
    """A user's error that a process which loads data has met, in place of its result."""

    message: str


class Telling:
    """
    A function whose user's errors are results, to be looked for by :func:`checked` in another
    process: a DataLoader would make a traceback of them.
    """

    def __init__(self, function: Callable[[Any], Any]):
        self.function = function

    def __call__(self, argument: Any) -> Any:
        try:
            return self.function(argument)
        except Exception as e:
            if not is_user_error(e):
                raise
            return Told(str(e))


def checked(result: Any) -> Any:
    """
    Return what a :class:`Telling` function has returned.

    Raises:
        UserError: it is a user's error.
    """
    if isinstance(result, Told):
        raise UserError(result.message)
    return result


def packed(example: Any) -> Any:
    """Return an example with labels of a byte, where they fit in one: they are the largest part of
    an example, which goes through a queue, pinned memory and a copy to the GPU."""
    if isinstance(example, dict) and _LABELS in example:
        least, most = example[_LABELS].aminmax()
        if least >= 0 and most <= 255:
            example[_LABELS] = example[_LABELS].byte()
    return example


def on_device(example: Any, device: torch.device) -> Any:
    """Return an example with its tensors on the device, and labels as models take them."""
    move = partial(Tensor.to, device=device, non_blocking=True)
    example = tree_map_only(Tensor, move, example)
    if isinstance(example, dict) and _LABELS in example:
        example[_LABELS] = example[_LABELS].long()
    return example


def _wide(records: Sequence[dict] | Dataset, channels: int) -> list[bool]:
    if isinstance(records, IndexedRecords):
        return records.wide.tolist()
    return [_is_wide(records[i], channels) for i in range(len(records))]


def _is_wide(record: dict, channels: int) -> bool:
    if "width" in record:
        return record["width"] > record["height"]
    try:
        size = header_size(record["file_name"], channels)
    except ValueError as e:
        raise UserError(f"{record['file_name']}: the image {e}") from e
    return size.width > size.height


def _identity(example: Any) -> Any:
    return example


def leave_signals_to_the_trainer(worker: int) -> None:
    """Ctrl-C, a queue's SIGTERM and a lost terminal reach every process, but an iteration that is
    to be finished needs its images. The trainer ends its workers by SIGTERM, which they obey."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(os.getppid(),), daemon=True).start()


def _obey(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
