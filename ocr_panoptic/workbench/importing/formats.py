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
        read: function that reads annotations, given their path and the folder of images or None. It
            has a parameter ``polygons`` ("edges" or "centres") if ``has_polygons`` is True, and a
            parameter ``part`` (the split to read) if one path can contain several splits.
        smaller_on_top: whether smaller segments cover larger segments; otherwise later segments
            cover earlier segments.
        kinds: things and stuff, if the format has fixed classes.
        splits: function that finds the splits at a path. It returns a dict from the name of each
            split to the path and the ``part`` (or None) to read.
        has_polygons: whether the format's polygons follow pixel edges in some tools, and pass
            through pixel centres in others.
        void_class: name of the class whose segments become void.
        rest_class: name of the background class, which becomes the class of ``--rest``, or void
            without ``--rest``.
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
    "label-studio": Format(read_label_studio, has_polygons=True),
    "labelme": Format(read_labelme, void_class="__ignore__", rest_class="_background_"),
    "masks": Format(read_masks, smaller_on_top=True),
    "via": Format(read_via, has_polygons=True),
}
