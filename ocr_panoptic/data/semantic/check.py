"""Check a semantic data set: a label image must fit its image and have only known labels."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.findings import Findings, thin_faults
from ocr_panoptic.formats.labels import (
    COLOURED,
    check_known,
    color_label,
    colours_of,
    decoded_labels,
    label_areas,
    label_text,
    palette_entries,
)
from ocr_panoptic.formats.pictures import Color, load_labels, read_size

from .label_space import LabelSpace
from .records import SemanticSource

FIRST = 20  # number of label images to search for unknown labels
MOST = 40  # largest number of labels in a message


def general_faults(source: SemanticSource, pairs: list[tuple[Path, Path]]) -> Iterator[str]:
    """Yield one fault, instead of a fault per image, if most images have the same unknown label."""
    foreign: Counter[int] = Counter()
    for _, label_file in pairs[:FIRST]:
        with suppress(FileNotFoundError, ValueError):  # check_labelled_image reports it
            foreign.update(_foreign(source.space.label_map, label_file))
    if max(foreign.values(), default=0) <= len(pairs[:FIRST]) // 2 or len(foreign) > MOST:
        return
    shown = ", ".join(map(label_text, sorted(foreign)))
    form = "[R, G, B]" if max(foreign) >= COLOURED else "NUMBER"
    key = "color" if max(foreign) >= COLOURED else "labels"
    yield (
        f"{source.split.labels}: these labels belong to no class: {shown}. In the data file, "
        f"write each class as {{name: NAME, {key}: {form}}}, and list labels to ignore as ignore: "
        f"[{form}]. If the borders are smoothed, save the files without smoothing. If the files "
        "are photos, panoptic PNGs or masks in an alpha channel, give label images instead."
    )


def _foreign(label_map: Mapping[int, int], label_file: Path) -> set[int]:
    file = load_labels(label_file, "label image", allow_jpeg=True)
    if colours := colours_of(file) if max(label_map) < COLOURED else ():
        return set(map(color_label, colours))
    return label_areas(decoded_labels(file, label_file, label_map)[0]).keys() - label_map.keys()


def checker(source: SemanticSource) -> Callable[[tuple[Path, Path]], Findings]:
    """Return a picklable function that checks one image of the source and its labels."""
    return partial(check_labelled_image, source)


def joint_faults(
    source: SemanticSource, pairs: Sequence[tuple[Path, Path]], findings: Sequence[Findings]
) -> Iterator[str]:
    """Yield a fault if all pixels are ignored, or if a program has sorted the palettes."""
    if not any(image.classes for image in findings):
        fix = 'Correct the keys "labels" and "ignore" in the data file.'
        yield f"{source.split.labels}: all pixels are ignored. {fix}"
    entries = _palette(pairs, findings)
    yield from [*_misplaced(source.space, entries)] or palette_faults(entries)


class PaletteEntry(NamedTuple):
    """An index of palettes, its colour, and the label images that have this entry."""

    place: int  # the index
    colour: Color
    images: int
    file: str  # the last of the images


def palette_faults(entries: Iterable[PaletteEntry]) -> Iterator[str]:
    """Yield a fault if palettes show that a program has sorted them."""
    for entry, other in _disagreeing(entries):
        yield (
            f"{entry.file}: palette index {entry.place} has the colour {[*entry.colour]}, but "
            f"palette index {other.place} of {other.file} has the colour {[*other.colour]}. A "
            "program may have sorted the palettes, so an index can mean several classes. Give each "
            f"class its color but no labels ({{name: NAME, color: {[*entry.colour]}}}), and list "
            "colours to ignore as ignore: [[R, G, B]]. If the indices are right, save the files "
            "without palettes."
        )
        return


def _misplaced(space: LabelSpace, entries: Sequence[PaletteEntry]) -> Iterator[str]:
    """Yield a fault if numbers count, but half of their colours are those of other classes."""
    label_map = space.label_map
    codes = {entry: color_label(entry.colour) for entry in entries}
    known = {entry: label_map[code] for entry, code in codes.items() if code in label_map}
    wrong = [entry for entry, label in known.items() if label != label_map[entry.place]]
    if wrong and 2 * len(wrong) >= len(entries):
        names = dict(enumerate(space.classes)) | {VOID_LABEL: "ignore"}
        entry = wrong[0]
        foreign = dict.fromkeys(str([*entry.colour]) for entry in entries if entry not in known)
        yield (
            f"{entry.file}: palette index {entry.place} has the colour {[*entry.colour]} of "
            f"{names[known[entry]]!r}, but {entry.place} is the label of "
            f"{names[label_map[entry.place]]!r}. The indices were read as labels, because some "
            f"colours belong to no class: {first_few([*foreign])}. If the colours are right, add "
            "these to ignore, or correct the key color of the classes. If the indices are right, "
            "remove the key color."
        )


def shared_palette(
    pairs: Sequence[tuple[Path, Path]], findings: Sequence[Findings]
) -> tuple[PaletteEntry, ...]:
    """Return the palette of a split without faults; leave out indices with random colours."""
    entries = _palette(pairs, findings)
    colours = Counter(entry.place for entry in entries)
    return tuple(entry for entry in entries if colours[entry.place] == 1)


def _palette(
    pairs: Sequence[tuple[Path, Path]], findings: Sequence[Findings], by_colour: bool = False
) -> list[PaletteEntry]:
    """Return the palette entries of the label images that are read as numbers, or as colours."""
    files: dict[tuple[int, Color], list[Path]] = defaultdict(list)
    for pair, image in zip(pairs, findings):
        for colour, index in image.palette.items() if image.by_colour == by_colour else ():
            files[index, colour].append(pair[1])
    return [PaletteEntry(*entry, len(of), str(of[-1])) for entry, of in files.items()]


def _disagreeing(entries: Iterable[PaletteEntry]) -> Iterator[tuple[PaletteEntry, PaletteEntry]]:
    """
    Yield two entries of palettes: a colour at two indices, or an index of two colours.

    Different colours of an index are left out if each is in one file only: programs may choose
    colours at random, to show numbers.
    """
    distinct = {entry[:2]: entry for entry in entries}.values()  # splits may share entries
    for part in (0, 1):
        groups: dict[Any, list[PaletteEntry]] = defaultdict(list)
        for entry in distinct:
            groups[entry[part]].append(entry)
        for group in groups.values():
            group.sort(key=lambda entry: -entry.images)
            if len(group) > 1 and (part == 1 or group[0].images > 1):
                yield group[1], group[0]


def _two_conventions(
    source: SemanticSource, pairs: Sequence[tuple[Path, Path]], findings: Sequence[Findings]
) -> Iterator[str]:
    """
    Warn if some files seem to have an undeclared ignored label in place of a class.

    Either each file has one of the two labels; or the files with the ignored label are masks: one
    and the same class is all that they show besides. A quarter of the masks may be exceptions.
    """
    classes = source.space.classes if source.space.default_ignore else ()
    odd = {file: image for (_, file), image in zip(pairs, findings) if image.ignored}
    few = len(odd) // 4
    shown = Counter(tuple(image.classes) for image in odd.values())
    are_masks = any(len(c) == 1 and number >= len(odd) - few for c, number in shown.items())
    found = []
    for label, name in enumerate(classes):
        usual = [file for (_, file), image in zip(pairs, findings) if label in image.classes]
        both = odd.keys() & {*usual}
        complete = len(odd) + len(usual) == len(findings) or len(classes) == 2
        if len(both) <= few if are_masks else complete and not both:
            found.append(([file for file in usual if file not in both], label, name))
    theirs, label, name = max(found, key=lambda entry: len(entry[0]), default=([], 0, ""))
    ours = [file for file, image in odd.items() if label not in image.classes]
    if ours and theirs:
        yield (
            f"{len(ours)} label image(s) have {VOID_LABEL}, which is ignored by default, but no "
            f"pixel of {name} ({first_few([file.name for file in ours])}). {len(theirs)} have "
            f"{name} but no {VOID_LABEL} ({first_few([file.name for file in theirs])}). If both "
            f"mean {name}, give each class its labels, such as {{name: {name}, labels: [{label}, "
            f"{VOID_LABEL}]}}. Otherwise, write ignore: {VOID_LABEL} in the data file."
        )


def warnings(
    source: SemanticSource, pairs: Sequence[tuple[Path, Path]], findings: Sequence[Findings]
) -> Iterator[str]:
    """Yield warnings about classes without pixels, and about doubtful labels."""
    yield from _two_conventions(source, pairs, findings)
    label_map = source.space.label_map
    doubtful = [
        file.name
        for (_, file), image in zip(pairs, findings)
        for meant, index in ((label_map.get(color_label(c)), i) for c, i in image.palette.items())
        if image.by_colour and label_map.get(index, meant) != meant
    ]
    if doubtful and not any(_disagreeing(_palette(pairs, findings, by_colour=True))):
        yield (
            "in some palettes, an index has the colour of another class "
            f"({first_few([*dict.fromkeys(doubtful)])}). The colours are used. If the indices are "
            "right, remove the color of every class from the data file."
        )
    classes = source.classes()
    ignored: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    for image in findings:
        ignored.update(image.ignored)
        pixels.update({label: area for label, (_, area) in image.classes.items()})
    if lost := [name for label, (name, _) in classes.items() if not pixels[label]]:
        total = sum(height * width for height, width in (image.size for image in findings))
        shares = [f"{label_text(v)} ({n / total:.2%} of the pixels)" for v, n in ignored.items()]
        what = f" Ignored labels: {', '.join(shares[:3])}." if shares else ""
        if source.space.default_ignore and shares:
            what += (
                f" Label {next(iter(ignored))} is ignored by default. If it means "
                f"{lost[0]}, give each class its labels, such as "
                f"{{name: {lost[0]}, labels: {next(iter(ignored))}}}."
            )
        is_single = len(lost) == len(classes) - 1
        hint = " A model learns nothing from a single class." if is_single else ""
        yield f"these classes have no pixels: {first_few(lost)}.{hint}{what}"
    if near := sum(image.is_near for image in findings):
        yield (
            f"{near} label image(s) have pixel values between labels, as in JPEG files and at "
            "smoothed borders. The nearest labels are used, so borders may be off by a pixel. "
            "Export PNGs that contain only labels."
        )


def check_labelled_image(source: SemanticSource, pair: tuple[Path, Path]) -> Findings:
    """Decode an image and its label image; check that sizes agree and that all labels are known."""
    (image, label_file), label_map = pair, source.space.label_map
    faults: list[str] = []
    photo = None
    try:
        photo = read_size(image, source.channels)
        faults += thin_faults(image, photo)
    except ValueError as error:
        faults.append(f"{image}: the image {error}.")
    try:
        file = load_labels(label_file, "label image", allow_jpeg=True)
        raw, is_near = decoded_labels(file, label_file, label_map)
    except (FileNotFoundError, ValueError) as error:
        return Findings([*faults, str(error)], (0, 0), {}, photo)
    height, width = raw.shape
    if photo and (width, height) != (photo.width, photo.height):
        faults.append(
            f"{label_file}: the labels have {width}x{height} pixels, but the image {image} has "
            f"{photo.width}x{photo.height}{photo.note} (width x height)."
        )
    areas = label_areas(raw)
    pixels: Counter[int] = Counter()
    ignored: Counter[int] = Counter()
    try:
        check_known(areas, label_map)
        for label, area in areas.items():
            if (trained := label_map[label]) == VOID_LABEL:
                ignored[label] = area
            else:
                pixels[trained] += area
    except ValueError as error:
        faults.append(f"{label_file}: {error}")
    classes = {label: (0, area) for label, area in pixels.items()}
    by_colour, palette = raw.dtype == np.uint32, palette_entries(file)
    labels = {"ignored": ignored, "is_near": is_near, "palette": palette, "by_colour": by_colour}
    return Findings(faults, (height, width), classes, photo, **labels)
