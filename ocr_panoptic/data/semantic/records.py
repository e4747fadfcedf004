"""Pairing of images and label images by name, as records in Detectron2's standard format."""

import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ocr_panoptic.data.classes import has_controls
from ocr_panoptic.data.data_file import STEM, folder_of
from ocr_panoptic.data.faults import DataFaults, first_few, raise_if_any
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.pictures import UNREAD_SUFFIXES, unread_fault

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp", ".gif"),
)
LABEL_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")
LOSSY_SUFFIXES = (".jpg", ".jpeg")  # read as labels if there are no other label files


@dataclass(frozen=True)
class LabelledFolder:
    """
    A folder of images and a folder of label images.

    The files of a pair have the same path below their folders, except for the suffixes and the text
    beside ``{stem}`` in a pattern.

    Attributes:
        images: folder, or pattern such as ``photos/{stem}.jpg``.
        labels: folder, or pattern such as ``masks/{stem}_mask.png``; None for a split whose labels
            are not published.
        image_suffixes, label_suffixes: ends of the file names; other files are not read.
        listed_by_labels: whether the labels define the split, because the folder of images holds
            more images.
        hint: advice if a folder is missing.
    """

    images: Path
    labels: Path | None
    image_suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    label_suffixes: tuple[str, ...] = LABEL_SUFFIXES + LOSSY_SUFFIXES
    listed_by_labels: bool = False
    hint: str = "Was it moved?"

    def unlabelled(self) -> list[Path]:
        """Return the images of a split without labels, in the order of names."""
        faults: list[str] = []
        self._check_folder(self.images, "images")
        images = _files(self.images, self.image_suffixes, faults)
        if not images:
            faults.append(self._nothing(self.images, self.image_suffixes))
        raise_if_any(faults)
        return [images[key] for key in sorted(images)]

    def pairs(self) -> list[tuple[Path, Path]]:
        """
        Return pairs (image, label image) in the order of names.

        Labels without an image are left out with a warning.
        """
        faults: list[str] = []
        assert self.labels is not None
        self._check_folder(self.images, "images")
        self._check_folder(self.labels, "label images")
        # In one folder, PNGs are the labels of the other files.
        suffixes = LABEL_SUFFIXES[:1] if self.labels == self.images else self.label_suffixes
        lossy = tuple(suffix for suffix in suffixes if suffix in LOSSY_SUFFIXES)
        exact = tuple(suffix for suffix in suffixes if suffix not in LOSSY_SUFFIXES)
        labels = _files(self.labels, lossy, faults, self.images)
        labels |= _files(self.labels, exact, faults, self.images)
        images = _files(self.images, self.image_suffixes, faults, self.labels, labels.values())
        unread = _files(self.images, tuple(UNREAD_SUFFIXES), [], self.labels)
        if unpaired := sorted(unread.keys() & (labels.keys() - images.keys())):
            fault = unread_fault([unread[key] for key in unpaired])
            raise DataFaults([f"{self.images}: {fault}"])
        sides = [
            ("image", self.images, self.image_suffixes, images),
            ("label image", self.labels, self.label_suffixes, labels),
        ]
        if self.listed_by_labels:
            sides.reverse()
        (_, place, suffixes, wanted), (kind, other_place, other_suffixes, others) = sides
        lost = sorted(wanted.keys() - others.keys())
        if len(lost) == len(wanted) > 1:
            faults.append(
                f"{wanted[lost[0]]}: neither it nor any other of the {len(wanted)} files has its "
                f"{kind} in {printable(folder_of(other_place))}, {_examples(other_place, others)}."
                f"{self._hint(images, self.labels)}"
            )
        else:
            for key in lost:
                expected = _path_of(other_place, key, other_suffixes)
                faults.append(f"{wanted[key]}: no {kind} {expected}.")
            if lost and len(lost) < len(wanted):
                number = f"{len(lost)} of {len(wanted)} have no {kind}"
                faults.append(f"{number}; move what is not to be trained on out of {place}.")
        if not wanted and self.labels == self.images and labels:
            pattern = f"{place.name}/{STEM}_mask.png"
            faults.append(
                f"{place}: all its images are PNGs, and taken for labels. Name these by a pattern, "
                f'such as labels: "{pattern}"'
            )
        elif not wanted:
            faults.append(self._nothing(place, suffixes))
        raise_if_any(faults)
        surplus = sorted(labels.keys() - images.keys())
        if surplus:
            some = first_few(surplus)
            logger.warning(f"{self.labels}: {len(surplus)} label images have no image: {some}")
        return [(images[key], labels[key]) for key in sorted(wanted)]

    def _check_folder(self, place: Path, what: str) -> None:
        if not (folder := folder_of(place)).is_dir():
            raise MissingFileError(f"{printable(folder)}: folder of {what} not found. {self.hint}")

    def _nothing(self, place: Path, suffixes: tuple[str, ...]) -> str:
        return f"{place}: no file that ends in {', '.join(suffixes)}. {self.hint}"

    def _hint(self, images: Mapping[str, Path], places: Path) -> str:
        """Return advice: the data file's keys that pair images and label images of other names."""
        folder = folder_of(places)
        labels = [f for f in sorted(folder.rglob("*")) if f.suffix.lower() in self.label_suffixes]
        if labels and STEM not in f"{self.images}{places}":
            old = {"images": self.images, "labels": places}
            new = dict(zip(old, _patterns([*images.values()], labels), strict=True))
            with suppress(DataFaults, MissingFileError, ValueError):
                if new != old and replace(self, images=new["images"], labels=new["labels"]).pairs():
                    changed = [key for key in old if old[key] != new[key]]
                    shown = [f'{key}: "{new[key]}"' for key in changed]
                    return f" Name them by a pattern: {', '.join(shown)}"
        if not labels:
            ends = ", ".join(self.label_suffixes)
            return f" Label images end in {ends}; see ocr-panoptic import for other annotations."
        return (
            f' Other names need a pattern, such as labels: "{folder.name}/{STEM}_mask.png"; '
            "several masks for an image are imported (ocr-panoptic import --from masks)."
        )


def _patterns(*sides: Sequence[Path]) -> list[Path]:
    """
    Return the folder or pattern of the images, and of the labels.

    The part that differs among the names of images, or of labels, is the stem that both share.
    """
    folders = [Path(os.path.commonpath([file.parent for file in files])) for files in sides]
    ends = [files[0].suffix if len({f.suffix for f in files}) == 1 else "" for files in sides]
    names = [
        [file.name.removesuffix(end or file.suffix) for file in files]
        for files, end in zip(sides, ends, strict=True)
    ]
    starts = [os.path.commonprefix(listed) for listed in names]
    # If names are equal in different folders, their end is the part beside the stem.
    starts = [
        "" if start in listed else re.sub(r"\d+$", "", start)
        for start, listed in zip(starts, names, strict=True)
    ]
    tails = [os.path.commonprefix([n[::-1] for n in listed])[::-1] for listed in names]
    tails = [re.sub(r"^\d+", "", tail) for tail in tails]
    # A common part of both sides belongs to the shared name.
    common = len(os.path.commonprefix([start[::-1] for start in starts]))
    starts = [start[: len(start) - common] for start in starts]
    common = len(os.path.commonprefix(tails))
    tails = [tail[common:] for tail in tails]
    return [
        folder / f"{start}{STEM}{tail}{end}" if start or tail else folder
        for folder, start, tail, end in zip(folders, starts, tails, ends, strict=True)
    ]


def _examples(place: Path, files: Mapping[str, Path]) -> str:
    """Return as text a few files of a place or, without files, the suffixes of other files."""
    if files:
        return f"such as {first_few([path.name for _, path in sorted(files.items())][:3])}"
    ends = sorted({p.suffix for p in folder_of(place).rglob("*") if p.is_file() and p.suffix})
    return f"where files end in {first_few(ends)}" if ends else "where there is no such file"


def _path_of(place: Path, key: str, suffixes: tuple[str, ...]) -> str:
    """Return the path where the file of a key is expected, for messages."""
    if STEM in str(place):
        return str(place).replace(STEM, key)
    others = [suffix for suffix in suffixes if suffix not in ("", suffixes[0])]
    shown = f" (or {', '.join(others[:4])})" if others else ""
    return f"{place / key}{suffixes[0]}{shown}"


def _files(
    place: Path,
    suffixes: tuple[str, ...],
    faults: list[str],
    other_place: Path | None = None,
    taken: Iterable[Path] = (),
) -> dict[str, Path]:
    """
    Find the files with one of the suffixes, as key -> file.

    The key is the path below the folder without suffix. For a pattern it is the text at ``{stem}``,
    with its folder.

    Args:
        other_place: folder or pattern of the other kind (images or labels); if it lies inside this
            folder, its files are skipped.
        taken: label files, if images are sought in the same folder.
    """
    found: dict[str, Path] = {}
    folder, pattern, suffixes = _search_of(place, suffixes)
    other, skipped = other_place and folder_of(other_place), {*taken}
    for root, folders, names in os.walk(folder, followlinks=True):
        for name in folders:
            if Path(os.path.realpath(root)).is_relative_to(os.path.realpath(Path(root, name))):
                raise DataFaults([f"{Path(root, name)}: is a link to a folder that it lies in."])
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
            if has_controls(str(path)):
                faults.append(
                    f"{path}: control characters, or bytes that are not UTF-8. Rename it."
                )
                continue
            if key in found:
                hint = f'Name one kind by a pattern, such as "{folder.name}/{STEM}{suffix}".'
                faults.append(f"{path}: has the name of {found[key]}, except for its end. {hint}")
            found[key] = path
    return found


def _search_of(place: Path, suffixes: tuple[str, ...]) -> tuple[Path, re.Pattern, tuple[str, ...]]:
    """Return the folder to search, the pattern of keys (paths without suffix), and the suffixes."""
    folder = folder_of(place)
    template = place.relative_to(folder).as_posix() if folder != place else STEM
    if own := next((s for s in IMAGE_SUFFIXES if template.lower().endswith(s)), None):
        template, suffixes = template[: -len(own)], (own,)
    before, *after = map(re.escape, template.split(STEM))
    text = rf"(?P<folder>(?:.*/)?){before}(?P<stem>[^/]+){'(?P=stem)'.join(after)}"
    return folder, re.compile(text), suffixes


def load_semantic(name: str, folders: list[LabelledFolder]) -> list[dict]:
    """
    Return records with file_name, dataset_name and, if there are labels, sem_seg_file_name (raw).

    Args:
        name: name of the data set, by which the mapper finds the label map.
        folders: all parts of the data set.
    """
    records: list[dict] = []
    known = {"dataset_name": name}
    for folder in folders:
        if folder.labels is None:
            records += [{"file_name": str(image), **known} for image in folder.unlabelled()]
        else:
            records += [
                {"file_name": str(image), "sem_seg_file_name": str(label), **known}
                for image, label in folder.pairs()
            ]
    return records
