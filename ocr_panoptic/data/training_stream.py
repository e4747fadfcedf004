"""Load training images as an endless sequence of batches that can be resumed at any batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, get_detection_dataset_dicts
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

from .catalog import complete_data_sets, label_maps_of
from .loading import begin_worker

_Key = tuple[int, int]  # position in the sequence of all processes, index of the record


def training_records(cfg: CfgNode, *, log: bool = False) -> list[dict]:
    """Return the records of DATASETS.TRAIN; if ``log``, log the number of instances per class."""
    names, usable = cfg.DATASETS.TRAIN, cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS
    complete_data_sets(names)
    try:
        return get_detection_dataset_dicts(names, usable, check_consistency=log)
    except AssertionError as error:
        if empty := [name for name in names if not DatasetCatalog.get(name)]:
            raise UserError(f"{', '.join(empty)}: there are no images to train on.") from error
        raise UserError(
            f"{', '.join(names)}: no image has an object, apart from crowds. To train on images "
            "without objects, set DATALOADER.FILTER_EMPTY_ANNOTATIONS False."
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
    cfg = seeded(cfg, seed)
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
    classes_of = partial(_classes_of_image, label_maps=label_maps_of(cfg.DATASETS.TRAIN))
    # Detectron2 reads the classes of an image from its instances.
    images = [
        {"annotations": [{"category_id": k} for k in classes]}
        for classes in imap_with_progress(classes_of, records, "classes of each image")
    ]
    factors = RepeatFactorTrainingSampler.repeat_factors_from_category_frequency(
        images, loader.REPEAT_THRESHOLD, sqrt=loader.REPEAT_SQRT
    )
    return RepeatFactorTrainingSampler(factors, seed=cfg.SEED)


def _classes_of_image(record: dict, label_maps: Mapping[str, Mapping[int, int]]) -> list[int]:
    labels = read_true_labels(record, label_maps.get(record.get("dataset_name", "")))
    return [label for label in label_areas(labels) if label != VOID_LABEL]


def run_seed(cfg: CfgNode) -> int:
    """Return cfg.SEED; if it is negative, return a random seed that all processes share."""
    return cfg.SEED if cfg.SEED >= 0 else comm.shared_random_seed()


def seeded(cfg: CfgNode, seed: int) -> CfgNode:
    """Return a copy of a config in which SEED is ``seed``."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.SEED = seed
    return cfg


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
