"""Published data sets that are in use, as registered data sets of Detectron2."""

from collections.abc import Collection

from .coco import register_coco_panoptic
from .panoptic import register_panoptic_releases
from .server_splits import register_server_splits
from .splits import register_semantic_datasets


def register_published(wanted: Collection[str]) -> None:
    """Register what is published under these names; other names are left alone.

    Raises:
        FileNotFoundError, DataFaults: as :func:`.register_panoptic_releases`.
    """
    register_semantic_datasets()
    register_server_splits()
    register_coco_panoptic(wanted)
    register_panoptic_releases(wanted)
