"""Semantic data in place: images and label PNGs with the same names."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.data_file import SemanticSplit
from ocr_panoptic.data.findings import Look, label_warnings
from ocr_panoptic.formats.labels import (
    COLOURED,
    check_known,
    color_label,
    colours_of,
    decoded_labels,
    label_areas,
    label_text,
)
from ocr_panoptic.formats.pictures import load_labels, read_size

from .label_space import LabelSpace
from .records import LabelledFolder, load_semantic

FIRST, MOST = 20, 40  # label images that are searched for foreign labels; labels in a message


@dataclass(frozen=True)
class SemanticSource:
    """
    The records of a split; a call returns them, see :func:`load_semantic`.

    Attributes:
        name: name of the data set.
        channels: channels of the images.
    """

    name: str
    split: SemanticSplit
    space: LabelSpace
    channels: int = 3

    def __call__(self) -> list[dict]:
        return load_semantic(self.name, [self._folder()])

    def metadata(self) -> dict:
        """Return the metadata of the registered data set."""
        return {**self.space.metadata(), "channels": self.channels}

    def ordered_as(self, classes: Mapping[str, Any]) -> "SemanticSource":
        """Return the source in the class order of other metadata, if these have the same names."""
        return replace(self, space=self.space.ordered_as(classes["stuff_classes"]))

    def _folder(self) -> LabelledFolder:
        return LabelledFolder(self.split.images, self.split.labels)

    # Methods for the check of data, which each kind of source has.

    def classes(self) -> dict[int, tuple[str, str]]:
        """Return the name and kind of each class, by training label."""
        return {label: (name, "class") for label, name in enumerate(self.space.classes)}

    def recipe(self) -> list:
        """Return all that the result of a check depends on, except the files."""
        return [self.channels, self.space.classes, sorted(self.space.label_map.items())]

    def images(self) -> list[tuple[Path, Path]]:
        """Return the images and their label PNGs."""
        return self._folder().pairs()

    def files(self, pair: tuple[Path, Path]) -> tuple[Path, ...]:
        """Return the files that a check of the image reads."""
        return pair

    def general_faults(self, pairs: list[tuple[Path, Path]]) -> Iterator[str]:
        """Yield one fault, instead of one for each image, if most have labels that no class has."""
        foreign: Counter[int] = Counter()
        for _, label_file in pairs[:FIRST]:
            with suppress(FileNotFoundError, ValueError):  # reported with the image
                foreign.update(self._foreign(label_file))
        if max(foreign.values(), default=0) <= len(pairs[:FIRST]) // 2 or len(foreign) > MOST:
            return
        shown = ", ".join(map(label_text, sorted(foreign)))
        form = "[R, G, B]" if max(foreign) >= COLOURED else "NUMBER"
        key = "color" if max(foreign) >= COLOURED else "labels"
        yield (
            f"{self.split.labels}: has labels that no class has: {shown}. Write each class as "
            f"{{name: NAME, {key}: {form}}}, and what does not count as ignore: [{form}]. Or are "
            "they other files: photos, panoptic PNGs, masks by their opacity?"
        )

    def _foreign(self, label_file: Path) -> set[int]:
        known = self.space.label_map
        if colours := colours_of(label_file) if max(known) < COLOURED else ():
            return set(map(color_label, colours))
        file = load_labels(label_file, "label image", allow_jpeg=True)
        return label_areas(decoded_labels(file, label_file, known)[0]).keys() - known.keys()

    def checker(self) -> Callable[[tuple[Path, Path]], Look]:
        """Return :func:`check_labelled_image` of this source, for other processes."""
        return partial(check_labelled_image, self.space, self.channels)

    def warnings(self, looks: Sequence[Look]) -> Iterator[str]:
        """Yield warnings about the labels."""
        names = dict(enumerate(self.space.classes))
        return label_warnings(looks, names, self.space.default_ignore)


def check_labelled_image(space: LabelSpace, channels: int, pair: tuple[Path, Path]) -> Look:
    """Check an image and its labels; both are decoded wholly."""
    image, label_file = pair
    faults, photo = [], None
    try:
        photo = read_size(image, channels)
    except ValueError as error:
        faults.append(f"{image}: the image {error}.")
    try:
        file = load_labels(label_file, "label image", allow_jpeg=True)
        raw, is_near = decoded_labels(file, label_file, space.label_map)
    except (FileNotFoundError, ValueError) as error:
        return Look([*faults, str(error)], (0, 0), {}, photo)
    height, width = raw.shape
    if photo and (width, height) != (photo.width, photo.height):
        faults.append(
            f"{label_file}: the labels have {width}x{height} pixels, the image {image} "
            f"{photo.width}x{photo.height}{photo.note} (width x height)."
        )
    areas = label_areas(raw)
    pixels: Counter[int] = Counter()
    ignored: Counter[int] = Counter()
    try:
        check_known(areas, space.label_map)
        for label, area in areas.items():
            if (trained := space.label_map[label]) == VOID_LABEL:
                ignored[label] = area
            else:
                pixels[trained] += area
    except ValueError as error:
        faults.append(f"{label_file}: {error}")
    shown = {label: (0, area) for label, area in pixels.items()}
    return Look(faults, (height, width), shown, photo, 0, ignored, is_near)
