"""Records that a training reads from the indices of its data sets, one when its image is loaded.

Detectron2 makes the records of all images at every start, in every process, and pickles each.
"""

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.build import print_instances_class_histogram
from detectron2.data.detection_utils import check_metadata_consistency
from torch.utils.data import Dataset

from ocr_panoptic.errors import UserError

from .panoptic.source import PanopticSource, kinds_of

logger = logging.getLogger(__name__)


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
