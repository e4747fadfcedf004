"""The formats of annotations that can be imported, by name."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from .annotated_image import AnnotatedImage
from .cvat import read_cvat
from .kinds import Kinds
from .label_studio import read_label_studio
from .labelme import read_labelme
from .voc import read_voc

Reader = Callable[[Path, Path | None], Iterable[AnnotatedImage]]


class Format(NamedTuple):
    """
    Attributes:
        read: (source, folder of images or None) -> the images, one at a time. Raises
            FileNotFoundError, ValueError, and DataFaults with those of all images at the end.
        source: what the first argument is.
        images: what the second one is; None where the source holds the images.
        overlap: which of two segments covers the other unless the user says it, a key of
            :data:`.painting.OVERLAPS`.
        kinds: of its classes, where the format itself has a list of them.
    """

    read: Reader
    source: str
    images: str | None = None
    overlap: str = "order"
    kinds: Kinds | None = None


FORMATS = {
    "cvat": Format(
        read_cvat,
        'XML of "CVAT for images 1.1", or the unpacked export with it',
        "folder of the images, by default images/ beside the XML",
    ),
    "label-studio": Format(read_label_studio, "JSON export", "folder of the images"),
    "labelme": Format(
        read_labelme,
        "folder of LabelMe's JSON files",
        "folder of the images, by default that of the JSON files",
    ),
    "voc": Format(read_voc, "folder with SegmentationClass, SegmentationObject and JPEGImages"),
}
