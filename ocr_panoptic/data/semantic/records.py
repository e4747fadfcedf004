"""Images and label images, paired by name, as records of Detectron2's standard format."""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ocr_panoptic.data.classes import has_controls
from ocr_panoptic.data.data_file import STEM, folder_of
from ocr_panoptic.data.faults import DataFaults, first_few, raise_if_any
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.files import printable

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")
LOSSY_SUFFIXES = (".jpg", ".jpeg")  # of labels where there are no others


@dataclass(frozen=True)
class LabelledFolder:
    """A folder of images and one of label images. A pair has the same path below its folder, except
    for the suffixes and for what stands around ``{stem}`` in a pattern.

    Attributes:
        images: folder, or pattern such as ``photos/{stem}.jpg``.
        labels: folder, or pattern such as ``masks/{stem}_mask.png``; None for a split whose labels
            are not published.
        image_suffixes, label_suffixes: ends of the file names. Files with other ends are left
            alone.
        listed_by_labels: the folder of images holds more than this split; the labels say which.
        hint: what to do where a folder is missing.
    """

    images: Path
    labels: Path | None
    image_suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    label_suffixes: tuple[str, ...] = LABEL_SUFFIXES + LOSSY_SUFFIXES
    listed_by_labels: bool = False
    hint: str = "Was it moved?"

    def pairs(self) -> list[tuple[Path, Path | None]]:
        """Return pairs (image, label image or None) in the order of names.

        Labels without image are left out with a warning.
        """
        faults: list[str] = []
        labels: dict[str, Path | None] = {}
        for place, what in ((self.images, "images"), (self.labels, "label images")):
            if place is not None and not folder_of(place).is_dir():
                folder = printable(folder_of(place))
                raise MissingFileError(f"{folder}: folder of {what} not found. {self.hint}")
        if self.labels is not None:
            # In one folder, PNGs are the labels of the other files.
            suffixes = LABEL_SUFFIXES[:1] if self.labels == self.images else self.label_suffixes
            lossy = tuple(suffix for suffix in suffixes if suffix in LOSSY_SUFFIXES)
            exact = tuple(suffix for suffix in suffixes if suffix not in LOSSY_SUFFIXES)
            labels = _files(self.labels, lossy, faults, self.images)
            labels |= _files(self.labels, exact, faults, self.images)
        images = _files(self.images, self.image_suffixes, faults, self.labels, labels.values())
        if self.labels is None:
            labels = dict.fromkeys(images)
        sides = [
            ("image", self.images, self.image_suffixes, images),
            ("label image", self.labels, self.label_suffixes, labels),
        ]
        if self.listed_by_labels:
            sides.reverse()
        (_, place, suffixes, wanted), (kind, other_place, other_suffixes, others) = sides
        lost = sorted(wanted.keys() - others.keys())
        if len(lost) == len(wanted) > 1:
            found = first_few([path.name for _, path in sorted(others.items())][:3])
            some = f"such as {found}" if others else "where no file is such a one"
            faults.append(
                f"{wanted[lost[0]]}: neither it nor any other of the {len(wanted)} files has its "
                f"{kind} in {printable(folder_of(other_place))}, {some}.{self._pattern(lost[0])}"
            )
        else:
            for key in lost:
                expected = _path_of(other_place, key, other_suffixes)
                faults.append(f"{wanted[key]}: no {kind} {expected}.")
        if not wanted:
            faults.append(f"{place}: no file that ends in {', '.join(suffixes)}. {self.hint}")
        raise_if_any(faults)
        surplus = sorted(labels.keys() - images.keys())
        if surplus:
            some = first_few(surplus)
            logger.warning(f"{self.labels}: {len(surplus)} label images have no image: {some}")
        return [(images[key], labels[key]) for key in sorted(wanted)]

    def _pattern(self, key: str) -> str:
        """Return the pattern to write, if a label image has a name around that of its image."""
        folder, stem = folder_of(self.labels), key.rpartition("/")[2]
        for path in sorted(folder.rglob("*")):
            around = re.fullmatch(rf"(.*[^0-9a-zA-Z])?{re.escape(stem)}([^0-9a-zA-Z].*)", path.name)
            if around and path.suffix.lower() in self.label_suffixes:
                name = f"{around[1] or ''}{STEM}{around[2]}"
                return f" Name them by a pattern: labels: {folder.name}/{name}"
        return f" Other names need a pattern, such as labels: {folder.name}/{STEM}_mask.png"


def _path_of(place: Path, key: str, suffixes: tuple[str, ...]) -> str:
    """Return where the file of a key would be, for messages."""
    if STEM in str(place):
        return str(place).replace(STEM, key)
    others = [suffix for suffix in suffixes if suffix not in ("", suffixes[0])]
    shown = f" (or {', '.join(others[:4])})" if others else ""
    return f"{place / key}{suffixes[0]}{shown}"


def _files(
    place: Path,
    suffixes: tuple[str, ...],
    faults: list[str],
    other_place: Path | None,
    taken: object = (),
) -> dict[str, Path]:
    """Return key -> file, for files with one of the suffixes: the key is the path below the folder
    without suffix, or what a pattern has as ``{stem}``, with its folder.

    Args:
        other_place: folder or pattern of other files; what lies below it is left alone if it is
            inside this folder.
        taken: files that are known to be others.
    """
    found: dict[str, Path] = {}
    folder, pattern, suffixes = _parsed(place, suffixes)
    other, taken = other_place and folder_of(other_place), set(taken)
    for root, folders, names in os.walk(folder, followlinks=True):
        for name in folders:
            if Path(os.path.realpath(root)).is_relative_to(os.path.realpath(Path(root, name))):
                raise DataFaults([f"{Path(root, name)}: is a link to a folder that it lies in."])
        folders[:] = [name for name in folders if Path(root, name) != other]
        for name in sorted(names):
            suffix = next((s for s in suffixes if name.lower().endswith(s.lower())), None)
            if suffix is None or name.startswith(".") or (path := Path(root, name)) in taken:
                continue
            stem = path.relative_to(folder).as_posix().removesuffix(name[-len(suffix) :])
            if not (match := pattern.fullmatch(stem)):
                continue
            key = match["folder"] + match["stem"]
            if has_controls(str(path)):
                faults.append(f"{path}: control characters, or bytes that are no UTF-8. Rename it.")
                continue
            if key in found:
                faults.append(f"{path}: has the name of {found[key]}, but for its end.")
            found[key] = path
    return found


def _parsed(place: Path, suffixes: tuple[str, ...]) -> tuple[Path, re.Pattern, tuple[str, ...]]:
    """Return the folder, the pattern of paths below it without suffix, and the suffixes."""
    folder = folder_of(place)
    around = place.relative_to(folder).as_posix() if folder != place else STEM
    if own := next((s for s in (*IMAGE_SUFFIXES, ".gif") if around.lower().endswith(s)), None):
        around, suffixes = around[: -len(own)], (own,)
    before, *after = map(re.escape, around.split(STEM))
    text = rf"(?P<folder>(?:.*/)?){before}(?P<stem>[^/]+){'(?P=stem)'.join(after)}"
    return folder, re.compile(text), suffixes


def load_semantic(name: str, folders: list[LabelledFolder]) -> list[dict]:
    """Return records with file_name, dataset_name and, where there are labels, sem_seg_file_name
    (raw).

    Args:
        name: the data set's; the mapper finds the label map by it.
        folders: all parts of the data set.
    """
    records = []
    for folder in folders:
        for image, label in folder.pairs():
            record = {"file_name": str(image), "dataset_name": name}
            if label is not None:
                record["sem_seg_file_name"] = str(label)
            records.append(record)
    return records
