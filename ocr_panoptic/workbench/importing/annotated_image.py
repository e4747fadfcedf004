"""The contents of an annotated image, into which every format is read, and a file that holds the
segments of many, so that memory has those of one image at a time.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from pycocotools import mask as rle

from ocr_panoptic.formats.files import naming


@dataclass(frozen=True)
class Segment:
    """
    Pixels of one class.

    Attributes:
        label: the class, as the tool names it.
        mask: COCO's compressed RLE, {"size": [height, width], "counts": bytes}, as large as the
            image.
        instance: True of one object, False of a region that may hold several or none (a semantic
            label), None where the format does not tell: then the kind of the class decides.
        is_crowd: a group of things that are not told apart.
        is_doubtful: the mark of a crowd may be the tool's for any mask that is no polygon.
        score: how sure a model was, None where a person drew it.
    """

    label: str
    mask: dict
    instance: bool | None = None
    is_crowd: bool = False
    is_doubtful: bool = False
    score: float | None = None

    def pixels(self) -> np.ndarray:
        """bool [height, width]"""
        return rle.decode(self.mask).astype(bool)


@dataclass(frozen=True)
class AnnotatedImage:
    """
    An image and its segments, the lowest first: a later one covers an earlier one where both lie.

    Attributes:
        file: the image, which exists.
        name: its path below the folder of the images, by which results are named.
        height, width: in pixels.
        segments: in the order in which they are painted.
    """

    file: Path
    name: str
    height: int
    width: int
    segments: Iterable[Segment] = ()


@dataclass(frozen=True)
class StoredSegments:
    """The segments of one image, read whenever they are iterated over.

    Attributes:
        path: of the file, whole by then.
        offset: of their line.
        size: [height, width] of the image.
    """

    path: Path
    offset: int
    size: tuple[int, int]

    def __iter__(self) -> Iterator[Segment]:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            rows = json.loads(file.readline())
        for label, counts, *others in rows:
            mask = {"size": list(self.size), "counts": counts.encode("ascii")}
            yield Segment(label, mask, *others)


class SegmentWriter:
    """Writes such a file, within a ``with`` block."""

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> "SegmentWriter":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "wb")  # noqa: SIM115 - closed by __exit__
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        with naming(self._path):
            self._file.close()

    def add(self, segments: Iterable[Segment], size: tuple[int, int]) -> StoredSegments:
        rows = [
            (s.label, s.mask["counts"].decode("ascii"), s.instance, s.is_crowd, False, s.score)
            for s in segments
        ]
        place = StoredSegments(self._path, self._file.tell(), size)
        with naming(self._path):
            self._file.write(json.dumps(rows).encode() + b"\n")
        return place
