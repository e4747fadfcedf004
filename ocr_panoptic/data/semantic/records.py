"""Create Detectron2 records for semantic data: images and label images with matching names."""

import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocr_panoptic.data.classes import has_controls
from ocr_panoptic.data.data_file import STEM, SemanticSplit, folder_of
from ocr_panoptic.data.faults import first_few, raise_if_any
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.files import printable, raise_error
from ocr_panoptic.formats.pictures import UNREAD_SUFFIXES

from .label_space import LabelSpace

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp", ".gif"),
)
LABEL_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")
LOSSY_SUFFIXES = (".jpg", ".jpeg")  # read as labels only if no other label file exists


@dataclass(frozen=True)
class LabelledFolder:
    """
    A folder of images and a folder of label images, which are paired by name.

    An image and its labels have the same path relative to their folders, except for suffixes and
    for the text around ``{stem}`` in a pattern.

    Attributes:
        images: folder, or pattern such as ``photos/{stem}.jpg``.
        labels: folder, or pattern such as ``masks/{stem}_mask.png``; None if there are no labels.
        image_suffixes, label_suffixes: file name suffixes to accept; other files are ignored.
        listed_by_labels: whether images without labels are left out; otherwise they are faults.
        hint: advice for messages about missing files.
    """

    images: Path
    labels: Path | None
    image_suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    label_suffixes: tuple[str, ...] = LABEL_SUFFIXES + LOSSY_SUFFIXES
    listed_by_labels: bool = False
    hint: str = "Is this the right path?"

    def unlabelled(self) -> list[Path]:
        """Return the image files of a split without labels, sorted by name."""
        faults: list[str] = []
        self._check_folder(self.images, "images")
        images = _files(self.images, self.image_suffixes, faults)
        if not images:
            faults.append(self._nothing(self.images, self.image_suffixes))
        raise_if_any(faults)
        return [images[key] for key in sorted(images)]

    def pairs(self) -> list[tuple[Path, Path]]:
        """Return pairs (image, label image), sorted by name; warn about labels without an image."""
        faults: list[str] = []
        assert self.labels is not None
        self._check_folder(self.images, "images")
        self._check_folder(self.labels, "label images")
        # If images and labels share a folder, PNGs are labels, and all other files are images.
        suffixes = LABEL_SUFFIXES[:1] if self.labels == self.images else self.label_suffixes
        lossy = tuple(suffix for suffix in suffixes if suffix in LOSSY_SUFFIXES)
        exact = tuple(suffix for suffix in suffixes if suffix not in LOSSY_SUFFIXES)
        labels = _files(self.labels, lossy, faults, self.images)
        labels |= _files(self.labels, exact, faults, self.images)
        images = _files(self.images, self.image_suffixes, faults, self.labels, labels.values())
        sides = [
            ("image", self.images, self.image_suffixes, images),
            ("label image", self.labels, self.label_suffixes, labels),
        ]
        if self.listed_by_labels:
            sides.reverse()
        (_, place, suffixes, wanted), (kind, other_place, other_suffixes, others) = sides
        lost = sorted(wanted.keys() - others.keys())
        if len(lost) == len(wanted) > 1:
            folder = folder_of(other_place)
            if others:
                names = first_few([others[key].name for key in sorted(others)][:3])
                hint = (
                    f"Files there are named, for example, {names}. If labels are named "
                    "differently from images, give a pattern in the data file, such as labels: "
                    f'"{folder.name}/{STEM}_mask.png". If an image has several masks, import '
                    "them: ocr-panoptic import --from masks."
                )
            else:
                ends = ", ".join(other_suffixes)
                hint = f"No file there ends in {ends}. For other formats, use ocr-panoptic import."
            faults.append(
                f"{wanted[lost[0]]}: neither this file nor any other of the {len(wanted)} files "
                f"has a matching {kind} in {printable(folder)}. {hint}"
            )
        else:
            for key in lost:
                expected = str(other_place).replace(STEM, key)
                if STEM not in str(other_place):
                    expected = f"{other_place / key}{other_suffixes[0]}"
                faults.append(f"{wanted[key]}: {kind} {expected} not found.")
            if lost and len(lost) < len(wanted):
                number = f"{len(lost)} of {len(wanted)} files have no {kind}"
                faults.append(f"{number}. Move files that should not be used out of {place}.")
        if not wanted and self.labels == self.images and labels:
            faults.append(
                f"{place}: images and labels share this folder, and all are PNGs, so they are read "
                "as labels. Give a pattern for the labels in the data file, such as labels: "
                f'"{place.name}/{STEM}_mask.png"'
            )
        elif not wanted:
            faults.append(self._nothing(place, suffixes))
        raise_if_any(faults)
        surplus = sorted(labels.keys() - images.keys())
        if surplus:
            some = first_few(surplus)
            raw = _files(self.images, tuple(UNREAD_SUFFIXES), [], self.labels).keys() & {*surplus}
            hint = f". Convert {len(raw)} HEIC or raw photos to JPEG" if raw else ""
            logger.warning(
                f"{self.labels}: {len(surplus)} label image(s) without an image: {some}{hint}"
            )
        return [(images[key], labels[key]) for key in sorted(wanted)]

    def _check_folder(self, place: Path, what: str) -> None:
        if not (folder := folder_of(place)).is_dir():
            raise MissingFileError(f"{printable(folder)}: folder of {what} not found. {self.hint}")

    def _nothing(self, place: Path, suffixes: tuple[str, ...]) -> str:
        return f"{place}: no files that end in {', '.join(suffixes)}. {self.hint}"


def _files(
    place: Path,
    suffixes: tuple[str, ...],
    faults: list[str],
    other_place: Path | None = None,
    taken: Iterable[Path] = (),
) -> dict[str, Path]:
    """
    Find images or label images, and return a dict of their paths.

    An image and its labels have the same key, such as "a/b" for the image "a/b.jpg" and for the
    label image "a/b_mask.png" with the pattern ``{stem}_mask.png``.

    Args:
        place: folder or pattern of the files to find.
        faults: list to which faults of file names are appended.
        other_place: folder to skip, given as the folder or as a pattern of its files.
        taken: files to skip.
    """
    files: dict[str, Path] = {}
    folder = folder_of(place)
    template = place.relative_to(folder).as_posix() if folder != place else STEM
    if end := next((s for s in IMAGE_SUFFIXES if template.lower().endswith(s)), None):
        template, suffixes = template[: -len(end)], (end,)
    before, *after = map(re.escape, template.split(STEM))
    pattern = re.compile(rf"(?P<folder>(?:.*/)?){before}(?P<stem>[^/]+){'(?P=stem)'.join(after)}")
    other, skipped = other_place and folder_of(other_place), {*taken}
    for root, folders, names in os.walk(folder, followlinks=True, onerror=raise_error):
        folders[:] = [name for name in folders if Path(root, name) != other]
        for name in sorted(names):
            suffix = next((s for s in suffixes if name.lower().endswith(s.lower())), None)
            if suffix is None or name.startswith(".") or (path := Path(root, name)) in skipped:
                continue
            stem = path.relative_to(folder).as_posix().removesuffix(name[-len(suffix) :])
            if not (match := pattern.fullmatch(stem)):
                continue
            # macOS decomposes letters with accents, other systems do not.
            key = unicodedata.normalize("NFC", match["folder"] + match["stem"])
            if has_controls(str(path)):  # files with its name could not be written
                fault = "the path has control characters, or bytes that are not UTF-8. Rename it."
                faults.append(f"{path}: {fault}")
            if key in files:
                faults.append(
                    f"{path}: same name as {files[key]}, except for the suffix. To select one, "
                    f'write a pattern in the data file, such as "{folder.name}/{STEM}{suffix}".'
                )
            files[key] = path
    return files


def load_semantic(name: str, folders: list[LabelledFolder]) -> list[dict]:
    """Return records with file_name, dataset_name and, if there are labels, sem_seg_file_name."""
    records: list[dict] = []
    for folder in folders:
        if folder.labels is None:
            records += [{"file_name": str(image)} for image in folder.unlabelled()]
        else:
            records += [
                {"file_name": str(image), "sem_seg_file_name": str(label)}
                for image, label in folder.pairs()
            ]
    return [{**record, "dataset_name": name} for record in records]


@dataclass(frozen=True)
class SemanticSource:
    """A semantic split; calling it returns its records in Detectron2's format."""

    name: str
    split: SemanticSplit
    space: LabelSpace
    channels: int = 3

    def __call__(self) -> list[dict]:
        return load_semantic(self.name, [LabelledFolder(self.split.images, self.split.labels)])

    def metadata(self) -> dict:
        return {**self.space.metadata(), "channels": self.channels}

    def with_classes(self, classes: Mapping[str, Any]) -> "SemanticSource":
        """Return a copy with a model's classes, or self if the model lacks a class of the data."""
        return replace(self, space=self.space.with_classes(classes["stuff_classes"]))

    # The data check calls the following methods; every class of sources has them. The recipe holds
    # the values that, together with the files, determine the result of a check.

    def classes(self) -> dict[int, tuple[str, str]]:
        """Return a dict from the label of each class that the data have to its name and kind."""
        absent = self.space.absent
        classes = enumerate(self.space.classes)
        return {label: (name, "class") for label, name in classes if name not in absent}

    def recipe(self) -> list:
        return [self.channels, self.space.classes, sorted(self.space.label_map.items())]

    def images(self) -> list[tuple[Path, Path]]:
        return LabelledFolder(self.split.images, self.split.labels).pairs()

    def files(self, pair: tuple[Path, Path]) -> tuple[Path, ...]:
        return pair
