"""Register published data sets with Detectron2."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

from ocr_panoptic.data.catalog import PUBLISHED, register
from ocr_panoptic.data.places import datasets_root

from .coco import COCO_PANOPTIC, coco_source
from .panoptic import PANOPTIC_RELEASES, SERVER_SPLITS, release_source
from .splits import NAMED_SPLITS, load_named


def register_published(wanted: Collection[str], root: Path | None = None) -> None:
    """
    Register the published data sets; ``root`` is ``$DETECTRON2_DATASETS`` by default.

    A data set that Detectron2 itself registers is replaced only if ``wanted`` names it. Files are
    read only when records are requested. A later call can set a different root.
    """
    root = root or datasets_root()
    for name, named in NAMED_SPLITS.items():
        files = [root / path for f in named.folders for path in (f.images, f.labels) if path]
        register(name, root, partial(load_named, name, root), named.space.metadata(), files)
    for name, kept in SERVER_SPLITS.items():
        files = [root / path for path in kept.files]
        register(name, root, partial(kept.load, *files), kept.metadata(files[0]), files)
    for name in (name for name in COCO_PANOPTIC if name in wanted):
        source = coco_source(name, root / "coco")
        files = [*vars(source.split).values(), source.instances_json]
        register(name, root / "coco", source, source.metadata(), files, replaces=True)
    for name in PANOPTIC_RELEASES:
        release = release_source(name, root)
        register(name, root, release, release.metadata(), vars(release.split).values())


PUBLISHED.append(register_published)
