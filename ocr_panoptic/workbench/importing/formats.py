"""The annotation formats that can be imported, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .cityscapes import CITYSCAPES_KINDS, read_cityscapes, read_cityscapes_polygons
from .coco import read_coco, splits_of_coco
from .cvat import read_cvat
from .kinds import Kinds
from .label_studio import read_label_studio
from .labelme import read_labelme
from .mask_files import read_masks
from .reading import Annotations
from .supervisely import read_supervisely
from .via import read_via
from .voc import read_voc
from .yolo import read_yolo, splits_of_yolo


class Format(NamedTuple):
    """
    An annotation format.

    Attributes:
        read: (source, folder of images or None) -> annotations. cli/import_.py describes the source
            and the images of each format. It also takes ``polygons`` if ``has_polygons``, and
            ``part`` if ``splits`` gives a part.
        smaller_on_top: see :func:`.painting.paint`.
        kinds: the format's own list of classes.
        splits: function: source -> its splits, as name -> (source, part); {} if it has no splits.
        void_class: name of a class that is always void.
        rest_class: name for all other pixels, which get ``--rest``'s class, or else are void.
        has_polygons: whether polygons follow pixel edges in some tools and centres in others (see
            :data:`.masks.POLYGONS`).
    """

    read: Callable[..., Annotations]
    smaller_on_top: bool = False
    kinds: Kinds | None = None
    splits: Callable[[Path], dict[str, tuple[Path, str | None]]] = lambda source: {}
    has_polygons: bool = False
    void_class: str | None = None
    rest_class: str | None = None


ANNOTATION_FORMATS = {
    "coco": Format(read_coco, smaller_on_top=True, splits=splits_of_coco, has_polygons=True),
    "voc": Format(read_voc),
    "yolo-seg": Format(read_yolo, smaller_on_top=True, splits=splits_of_yolo, has_polygons=True),
    "supervisely": Format(read_supervisely),
    "cityscapes": Format(read_cityscapes, kinds=CITYSCAPES_KINDS),
    "cityscapes-polygons": Format(read_cityscapes_polygons, kinds=CITYSCAPES_KINDS),
    "cvat": Format(read_cvat),
    "label-studio": Format(read_label_studio),
    "labelme": Format(read_labelme, void_class="__ignore__", rest_class="_background_"),
    "masks": Format(read_masks, smaller_on_top=True),
    "via": Format(read_via, has_polygons=True),
}
