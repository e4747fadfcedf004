"""The formats of annotations that can be imported, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .cityscapes import CITYSCAPES_KINDS, read_cityscapes, read_cityscapes_polygons
from .coco import read_coco, splits_of_coco
from .cvat import read_cvat
from .kinds import Kinds
from .label_studio import read_label_studio
from .labelme import BACKGROUND, IGNORE, read_labelme
from .mask_files import read_masks
from .reading import Annotations
from .supervisely import read_supervisely
from .via import read_via
from .voc import read_voc
from .yolo import read_yolo, splits_of_yolo


class Format(NamedTuple):
    """A format of annotations.

    Attributes:
        read: (source, folder of images or None) -> the annotations. It takes ``polygons`` if
            ``has_polygons``, and ``part`` if ``splits`` gives one.
        smaller_on_top: see :func:`.painting.paint`.
        kinds: the format's own list of classes.
        splits: source -> its splits: name -> source and part; {} if it has none.
        void_class: name of a class that is void, whatever the kinds of others are.
        rest_class: name of a class that is the rest: what ``--rest`` names, else void.
        has_polygons: whether tools disagree on what polygons go through, :data:`.masks.POLYGONS`.
    """

    read: Callable[..., Annotations]
    smaller_on_top: bool = False
    kinds: Kinds | None = None
    splits: Callable[[Path], dict[str, tuple[Path, str | None]]] = lambda source: {}
    has_polygons: bool = False
    void_class: str | None = None
    rest_class: str | None = None


# cli/import_.py says what the source and images of each are.
ANNOTATION_FORMATS = {
    "coco": Format(read_coco, smaller_on_top=True, splits=splits_of_coco, has_polygons=True),
    "voc": Format(read_voc),
    "yolo-seg": Format(read_yolo, smaller_on_top=True, splits=splits_of_yolo, has_polygons=True),
    "supervisely": Format(read_supervisely),
    "cityscapes": Format(read_cityscapes, kinds=CITYSCAPES_KINDS),
    "cityscapes-polygons": Format(read_cityscapes_polygons, kinds=CITYSCAPES_KINDS),
    "cvat": Format(read_cvat),
    "label-studio": Format(read_label_studio),
    "labelme": Format(read_labelme, void_class=IGNORE, rest_class=BACKGROUND),
    "masks": Format(read_masks, smaller_on_top=True),
    "via": Format(read_via, has_polygons=True),
}
