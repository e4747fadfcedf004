"""The segments of many images in a file, so that memory holds those of one image at a time."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ocr_panoptic.formats.files import naming

from .annotated_image import Segment


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
