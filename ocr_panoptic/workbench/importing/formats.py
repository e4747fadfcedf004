"""The formats of annotations that can be imported, by name."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from .annotated_image import AnnotatedImage
from .cityscapes import CITYSCAPES_KINDS, IDS, read_cityscapes, read_cityscapes_polygons
from .coco import read_coco, splits_of_coco
from .cvat import read_cvat
from .kinds import Kinds
from .label_studio import read_label_studio
from .labelme import read_labelme
from .supervisely import read_supervisely
from .voc import read_voc
from .yolo import read_yolo, splits_of_yolo

Reader = Callable[..., Iterable[AnnotatedImage]]


class Format(NamedTuple):
    """
    Attributes:
        read: (source, folder of images or None) -> the images, one at a time. Raises
            FileNotFoundError, ValueError, and DataFaults with those of all images at the end.
            With ``polygons``, where ``has_polygons``; with ``part``, where ``splits`` gives one.
        overlap: which of two segments covers the other unless the user says it, a key of
            :data:`.painting.OVERLAPS`; None where they do not overlap.
        kinds: of its classes, where the format itself has a list of them.
        ids: of these classes in its files.
        splits: source -> the splits that it has: name -> source and part; {} where it has none.
        has_polygons: of which tools have two notions, :data:`.masks.POLYGONS`.
    """

    read: Reader
    overlap: str | None = "order"
    kinds: Kinds | None = None
    ids: Mapping[str, int] = {}
    splits: Callable[[Path], dict[str, tuple[Path, str | None]]] = lambda source: {}
    has_polygons: bool = False


# What source and images are of each, the text of cli/import_.py says.
ANNOTATION_FORMATS = {
    "coco": Format(read_coco, "area", splits=splits_of_coco, has_polygons=True),
    "voc": Format(read_voc, None),
    "yolo-seg": Format(read_yolo, "area", splits=splits_of_yolo, has_polygons=True),
    "supervisely": Format(read_supervisely),
    "cityscapes": Format(read_cityscapes, None, CITYSCAPES_KINDS, IDS),
    "cityscapes-polygons": Format(read_cityscapes_polygons, kinds=CITYSCAPES_KINDS),
    "cvat": Format(read_cvat),
    "label-studio": Format(read_label_studio),
    "labelme": Format(read_labelme),
}
