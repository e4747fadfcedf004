"""Load the images of an evaluation."""

from collections.abc import Callable
from typing import Any

from detectron2.config import CfgNode
from detectron2.data import MapDataset, get_detection_dataset_dicts
from detectron2.data.build import trivial_batch_collator
from detectron2.data.common import DatasetFromList
from detectron2.data.samplers import InferenceSampler
from torch.utils.data import DataLoader

from .loader_processes import end_if_an_image_is_lost


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
