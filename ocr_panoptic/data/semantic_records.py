"""Images and label PNGs, paired by name, as records of Detectron2's standard format."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from .faults import raise_if_any

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp")
LABEL_SUFFIX = ".png"


@dataclass(frozen=True)
class LabelledFolder:
    """A folder of images and one of label PNGs. A pair has the same path below its folder, but for
    the suffixes.

    Attributes:
        labels: None for a split whose labels are not published.
        image_suffixes, label_suffix: ends of the file names. Files with other ends are left alone.
        listed_by_labels: the folder of images holds more than this split; the labels say which.
        hint: what to do where a folder is missing.
    """

    images: Path
    labels: Path | None
    image_suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    label_suffix: str = LABEL_SUFFIX
    listed_by_labels: bool = False
    hint: str = "Was it moved?"

    def pairs(self) -> list[tuple[Path, Path | None]]:
        """(image, label PNG or None) in the order of names.

        Labels without image are left out with a warning.

        Raises:
            FileNotFoundError: a folder is missing.
            DataFaults: an image without label PNG (or the reverse, see ``listed_by_labels``), two
                images of one name, or no image at all.
        """
        for folder, what in ((self.images, "images"), (self.labels, "label PNGs")):
            if folder is not None and not folder.is_dir():
                raise FileNotFoundError(f"{folder}: folder of {what} not found. {self.hint}")
        faults: list[str] = []
        images = _files(self.images, self.image_suffixes, faults)
        if self.labels is None:
            labels = dict.fromkeys(images)
        else:
            labels = _files(self.labels, (self.label_suffix,), faults)
        if self.listed_by_labels:
            wanted, folder, suffixes = labels, self.labels, (self.label_suffix,)
            image = "/".join(self.image_suffixes)
            absent = sorted(labels.keys() - images.keys())
            faults += [f"{labels[k]}: no image {self.images / k}{image}." for k in absent]
        else:
            wanted, folder, suffixes = images, self.images, self.image_suffixes
            absent = sorted(images.keys() - labels.keys())
            faults += [
                f"{images[k]}: no label PNG {self.labels / k}{self.label_suffix}." for k in absent
            ]
        if not wanted:
            faults.append(f"{folder}: no file that ends in {', '.join(suffixes)}. {self.hint}")
        raise_if_any(faults)
        surplus = sorted(labels.keys() - images.keys())
        if surplus:
            some = ", ".join(surplus[:5]) + (", ..." if len(surplus) > 5 else "")
            logger.warning(f"{self.labels}: {len(surplus)} label PNGs have no image: {some}")
        return [(images[key], labels[key]) for key in sorted(wanted)]


def _files(folder: Path, suffixes: tuple[str, ...], faults: list[str]) -> dict[str, Path]:
    """Path below the folder without suffix -> file, for files with one of the suffixes."""
    found: dict[str, Path] = {}
    for root, _, names in os.walk(folder, followlinks=True):
        for name in sorted(names):
            suffix = next((s for s in suffixes if name.lower().endswith(s.lower())), None)
            if suffix is None or name.startswith("."):
                continue
            path = Path(root, name)
            key = path.relative_to(folder).as_posix()[: -len(suffix)]
            if key in found:
                faults.append(f"{path}: has the name of {found[key]}, but for its end.")
            found[key] = path
    return found


def load_semantic(name: str, folders: list[LabelledFolder]) -> list[dict]:
    """Records with file_name, dataset_name and, where there are labels, sem_seg_file_name (raw).

    Args:
        name: the data set's; the mapper finds the label map by it.
        folders: all parts of the data set.

    Raises:
        FileNotFoundError, DataFaults: as :meth:`LabelledFolder.pairs`.
    """
    records = []
    for folder in folders:
        for image, label in folder.pairs():
            record = {"file_name": str(image), "dataset_name": name}
            if label is not None:
                record["sem_seg_file_name"] = str(label)
            records.append(record)
    return records
