"""
Reads mask images: one for each object or class, or one that contains all objects of an image.

A mask belongs to the image whose name (without suffix) is the name of a folder above the mask, the
mask's own name, or the beginning or the end of the mask's name:

    masks/0001/car_1.png    masks/car/0001.png    masks/0001_car_1.png    0001/masks/4f3a.png

All of these masks belong to image 0001. The first three have the class "car"; the last has the
class "object", because its path names no class. If masks and images are in the same folder, a file
whose name begins or ends with the name of another file is a mask.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ocr_panoptic.data.faults import first_few, raise_if_any
from ocr_panoptic.data.semantic.records import LABEL_SUFFIXES, LOSSY_SUFFIXES
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import colours_of, decoded_labels, palette_entries
from ocr_panoptic.formats.pictures import load_labels

from .annotated_image import AnnotatedImage, Segment
from .masks import masks_of_map, window_of
from .reading import Annotations, check_size, files_below, image_file, read_each

logger = logging.getLogger(__name__)

UNNAMED = "object"
# Names of folders and files that are not classes.
_COMMON = {
    *("mask", "masks", "cp_masks", "label", "labels", "annotation", "annotations", "gt", "seg"),
    *("instances", "image", "images", "train", "val", "test", UNNAMED),
}
_MASK_FOLDERS = {"mask", "masks", "label", "labels", "annotation", "annotations"}
_NUMBER = re.compile(r"(?:[\W_]+\d*)+$")  # "_1", " (2)" at the end of a name; not in "grade1"
# Files that Cellpose writes beside its masks, "..._cp_masks.png".
_CELLPOSE = re.compile(r"_(flows|outlines|cp_output|dP|cellprob)(_cp_masks)?\.\w+$")
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)  # usual backgrounds
_HASH = re.compile(r"(?=.*\d)[0-9a-fA-F-]{8,}")


def read_masks(source: Path, images: Path | None = None) -> Annotations:
    """Return the images that have masks; each value of a mask except 0 becomes a segment."""
    folder = images or source
    photos = _photos(folder, source)
    masks = sorted({*files_below(source, LABEL_SUFFIXES + LOSSY_SUFFIXES)} - {*photos})
    surplus = [str(mask.relative_to(source)) for mask in masks if _CELLPOSE.search(mask.name)]
    if surplus and any(mask.stem.endswith("_cp_masks") for mask in masks):
        masks = [mask for mask in masks if not _CELLPOSE.search(mask.name)]
        some = first_few(surplus)
        logger.warning(
            f"{source}: left out {len(surplus)} Cellpose file(s) that are not masks: {some}"
        )
    by_stem = defaultdict(list)
    for photo in photos:
        by_stem[photo.stem].append(photo)
    owned: dict[Path, list[tuple[Path, str]]] = defaultdict(list)
    lost, faults = [], []
    for mask in masks:
        path = mask.relative_to(source)
        stem = _owner(path, by_stem)
        if stem is None:
            lost.append(str(path))
            continue
        # Several images may have this name: the mask belongs to the image that shares most folders.
        shared = {photo: len({*mask.parts} & {*photo.parts[:-1]}) for photo in by_stem[stem]}
        owners = [photo for photo, number in shared.items() if number == max(shared.values())]
        if len(owners) > 1:
            some = first_few([str(photo.relative_to(folder)) for photo in owners])
            faults.append(
                f"{mask}: several images match: {some}. "
                "Put it into folders named like those of its image."
            )
        else:
            owned[owners[0]].append((mask, _label(path, stem)))
    raise_if_any(faults)
    if not owned:
        raise UserError(
            f"{source}: found {len(masks)} mask(s), but not their images in {folder}. A mask must "
            "be in a folder with the name of its image, or its name must begin or end with that "
            "name. If masks and images have the same names, give two folders: --train MASKS IMAGES."
        )
    without = [str(photo.relative_to(folder)) for photo in photos if photo not in owned]
    for what, names in (("mask(s) without an image", lost), ("image(s) without a mask", without)):
        if names:
            logger.warning(f"{source}: left out {len(names)} {what}: {first_few(names)}")
    labels = {label for listed in owned.values() for _, label in listed}
    return Annotations(
        [(str(photo), (photo, owned[photo])) for photo in sorted(owned)],
        lambda entry: image_file(folder, [entry[0].relative_to(folder).as_posix()]),
        partial(_read, instance=True if labels == {UNNAMED} else None),
    )


def _photos(folder: Path, source: Path) -> list[Path]:
    """Return the images below ``folder`` that are not masks; the masks are below ``source``."""
    files = [
        file
        for file in files_below(folder)
        if not {part.lower() for part in file.relative_to(folder).parts[:-1]} & _MASK_FOLDERS
    ]
    if source == folder:
        masks = _masks_beside_images(folder, files)
        return [file for file in files if file not in masks]
    is_inside = folder in source.parents
    return [file for file in files if not (is_inside and source in file.parents)]


def _masks_beside_images(folder: Path, files: Sequence[Path]) -> set[Path]:
    """
    Return the files that are masks because their path contains another file's name.

    A file such as ``a_2.png`` beside ``a.png`` is an image if it has its own mask.
    """
    lossless = {file for file in files if file.name.lower().endswith(LABEL_SUFFIXES)}
    stems, others = {file.stem for file in files}, {f.stem for f in files if f not in lossless}
    owners = {}
    for file in files:
        known = stems if file in lossless and file.stem in others else stems - {file.stem}
        owners[file] = _owner(file.relative_to(folder), known)
    owned = {
        file
        for file, owner in owners.items()
        if owner is not None
        and not (file.stem in owners.values() and _NUMBER.fullmatch(file.stem.removeprefix(owner)))
    }
    return owned & lossless or {f for f in owned if f.name.lower().endswith(LOSSY_SUFFIXES)}


def _owner(mask: Path, stems: Collection[str]) -> str | None:
    """Return the image name in ``stems`` that a mask's path contains, or None."""
    for part in (*mask.parts[-2::-1], mask.stem):
        if part in stems:
            return part
    separators = [*re.finditer(r"[\W_]", mask.stem)]
    starts = [mask.stem[: match.start()] for match in reversed(separators)]
    ends = [mask.stem[match.end() :] for match in separators]
    return next((part for part in starts + ends if part in stems), None)


def _label(mask: Path, stem: str) -> str:
    """Return the class that a mask's path names; ``stem`` is the image's name without suffix."""
    rest = mask.stem.removeprefix(stem)
    rest = mask.stem.removesuffix(stem) if rest == mask.stem else rest
    rest = "" if _HASH.fullmatch(rest) else _NUMBER.sub("", rest)
    for part in (rest, *mask.parts[-2::-1]):
        name = part.strip("_-. ")
        is_word = re.match(r"[^\W\d_]", name) and not _HASH.fullmatch(name)
        is_common = name.lower().rstrip("0123456789") in _COMMON  # mask1
        if is_word and part != stem and not is_common:
            return name
    return UNNAMED


def _numbers_or_mask(path: Path) -> np.ndarray:
    """Return a mask file's object numbers [H, W]; a JPEG or smoothed mask gives only 0 and 255."""
    is_lossy = path.suffix.lower() in LOSSY_SUFFIXES
    image = load_labels(path, "mask", allow_jpeg=is_lossy)
    if not is_lossy:
        if colours := colours_of(image):
            raise UserError(
                f"the mask has the colours {first_few([str([*colour]) for colour in colours])}. If "
                "each colour is a class, no import is needed: give each class its color in a data "
                "file. If each is an object, export one mask per object, or one image whose pixel "
                "values number the objects."
            )
        entries = palette_entries(image)
        first = [colour for colour, index in entries.items() if index == 0]
        black, found = entries.get(_BLACK), ""
        if black:
            found = f"black at index {black} and another colour"
        elif first and first[0] not in (_BLACK, _WHITE):
            found = f"the colour {[*first[0]]}"
        if found:
            raise UserError(
                f"its palette has {found} at index 0, so the background is unclear. Save it "
                "without a palette, with 0 for the background."
            )
        numbers = decoded_labels(image, path, None)[0]
        if not (numbers == 255).any() or _are_numbers(numbers):
            return numbers
    return decoded_labels(image, path, {0: 0, 255: 1})[0]


def _are_numbers(values: np.ndarray) -> bool:
    """Return whether the values 1 to 254 are object numbers, not greys of smoothed borders."""
    import cv2

    others = (values > 0) & (values != 255)
    near = cv2.dilate((values == 255).astype(np.uint8), np.ones((5, 5), np.uint8)).view(bool)
    if not others.any() or (others & near).sum() > others.sum() / 2:
        return False  # smoothed borders lie around 255
    # An object has one or two areas, noise has many.
    shown = [window_of(mask)[1] for _, mask in masks_of_map(np.where(others, values, 0))]
    areas = (cv2.connectedComponents(window.astype(np.uint8))[0] - 1 for window in shown)
    return sum(areas) <= 2 * len(shown)


def _read(
    image: AnnotatedImage, entry: tuple[Path, list[tuple[Path, str]]], instance: bool | None
) -> AnnotatedImage:
    def segments(entry: tuple[Path, str]) -> list[Segment]:
        path, label = entry
        values = _numbers_or_mask(path)
        check_size(image, *values.shape)
        return [Segment(label, mask, instance) for _, mask in masks_of_map(values)]

    listed = read_each(((str(path), (path, label)) for path, label in entry[1]), segments)
    return replace(image, segments=[segment for found in listed for segment in found])
