"""Images and label PNGs, paired by name, as records of Detectron2's standard format."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from ocr_panoptic.data.classes import has_controls
from ocr_panoptic.data.faults import DataFaults, first_few, raise_if_any
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.files import printable

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
        """Return pairs (image, label PNG or None) in the order of names.

        Labels without image are left out with a warning.
        """
        for folder, what in ((self.images, "images"), (self.labels, "label PNGs")):
            if folder is not None and not folder.is_dir():
                raise MissingFileError(
                    f"{printable(folder)}: folder of {what} not found. {self.hint}"
                )
        faults: list[str] = []
        images = _files(self.images, self.image_suffixes, faults)
        if self.labels is None:
            labels = dict.fromkeys(images)
        else:
            labels = _files(self.labels, (self.label_suffix,), faults)
        sides = [
            ("image", self.images, self.image_suffixes, images),
            ("label PNG", self.labels, (self.label_suffix,), labels),
        ]
        if self.listed_by_labels:
            sides.reverse()
        (_, folder, suffixes, wanted), (kind, other_folder, other_suffixes, others) = sides
        for key in sorted(wanted.keys() - others.keys()):
            expected = f"{other_folder / key}{'/'.join(other_suffixes)}"
            faults.append(f"{wanted[key]}: no {kind} {expected}.")
        if not wanted:
            faults.append(f"{folder}: no file that ends in {', '.join(suffixes)}. {self.hint}")
        raise_if_any(faults)
        surplus = sorted(labels.keys() - images.keys())
        if surplus:
            some = first_few(surplus)
            logger.warning(f"{self.labels}: {len(surplus)} label PNGs have no image: {some}")
        return [(images[key], labels[key]) for key in sorted(wanted)]


def _files(folder: Path, suffixes: tuple[str, ...], faults: list[str]) -> dict[str, Path]:
    """Return path below the folder without suffix -> file, for files with one of the suffixes."""
    found: dict[str, Path] = {}
    for root, folders, names in os.walk(folder, followlinks=True):
        for name in folders:
            if Path(os.path.realpath(root)).is_relative_to(os.path.realpath(Path(root, name))):
                raise DataFaults([f"{Path(root, name)}: is a link to a folder that it lies in."])
        for name in sorted(names):
            suffix = next((s for s in suffixes if name.lower().endswith(s.lower())), None)
            if suffix is None or name.startswith("."):
                continue
            path = Path(root, name)
            if has_controls(str(path)):
                faults.append(f"{path}: control characters, or bytes that are no UTF-8. Rename it.")
                continue
            key = path.relative_to(folder).as_posix()[: -len(suffix)]
            if key in found:
                faults.append(f"{path}: has the name of {found[key]}, but for its end.")
            found[key] = path
    return found


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
