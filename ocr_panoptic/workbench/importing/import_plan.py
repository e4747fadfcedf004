"""Defines the options of an import, and reads the images and segments of its sources."""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from ocr_panoptic.data.classes import faults_of_class
from ocr_panoptic.data.faults import DataFaults, gathering, raise_if_any, repeated
from ocr_panoptic.data.semantic.label_space import LabelSpace
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.labels import read_labels
from ocr_panoptic.progress import imap_with_progress

from .annotated_image import AnnotatedImage, Segment
from .formats import ANNOTATION_FORMATS
from .kinds import VOID, ClassCount, Kinds, add_classes, check_crowds, resolve_kinds
from .masks import masks_of_map
from .reading import read_each

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnnotationSource:
    """
    The files that a user names for a split of the new data set.

    Attributes:
        images: folder of images; None if the format determines the folder.
        labels: folder of semantic label PNGs, over which the annotations are painted; can be None.
        part: split of the annotations to read; None for all splits of the annotations.
        is_own: whether the annotations, not the user, name the split, which may be empty.
    """

    annotations: Path
    images: Path | None = None
    labels: Path | None = None
    part: str | None = None
    is_own: bool = False


@dataclass(frozen=True)
class ImportPlan:
    """
    The options of an import.

    Attributes:
        format: key of :data:`.formats.ANNOTATION_FORMATS`.
        kinds: things, stuff and ignored classes, if the user lists them.
        label_space: classes of the label PNGs, if the user gives label PNGs.
        crowds: whether segments marked as crowds are "groups" of objects or single "objects". None
            means "groups", but raises an error if the segments may be single objects.
        polygons: "edges" if polygons follow the edges of pixels, "centres" if they pass through the
            centres of border pixels; None for the format's default.
        rest: stuff class for pixels without a segment; None for void.
        split: share of the images for training, if the images are divided at random.
    """

    format: str
    kinds: Kinds | None = None
    label_space: LabelSpace | None = None
    crowds: str | None = None
    polygons: str | None = None
    rest: str | None = None
    split: float | None = None
    semantic: bool = False
    skip_missing: bool = False


def check_plan(sources: Mapping[str, AnnotationSource], plan: ImportPlan) -> None:
    """Raise an error if options contradict one another or a folder of label PNGs is missing."""
    if plan.split is not None and "val" in sources:
        raise UserError("Give --split or --val, not both.")
    if plan.split is not None and not 0 < plan.split < 1:
        raise UserError(f"--split is {plan.split}; expected a training share between 0 and 1.")
    if plan.polygons is not None and not ANNOTATION_FORMATS[plan.format].has_polygons:
        raise UserError(f"--polygons does not apply to {plan.format}. Remove it.")
    if {source.labels is not None for source in sources.values()} != {plan.label_space is not None}:
        raise UserError(
            "For label PNGs, give their folder after the folder of images in --train and in any "
            "--val, and their class file in --label-classes. Give all of these, or none."
        )
    for source in sources.values():
        if source.labels is not None and not source.labels.is_dir():
            raise MissingFileError(f"{source.labels}: folder of label PNGs not found.")


def with_own_splits(
    sources: Mapping[str, AnnotationSource], plan: ImportPlan
) -> Mapping[str, AnnotationSource]:
    """
    Return a source for each split that the annotations of "train" define.

    Return ``sources`` unchanged if it has a second split or a folder of images, if the annotations
    define no splits, or if they define several splits and ``plan.split`` is set.
    """
    train = sources["train"]
    if sources.keys() != {"train"} or train.images:
        return sources
    splits = ANNOTATION_FORMATS[plan.format].splits(train.annotations)
    if len(splits) == 1:  # a single split is for training, whatever its name
        splits = {"train": next(iter(splits.values()))}
    elif not splits or plan.split is not None:
        return sources
    logger.info(f"{train.annotations}: using the splits of the annotations: {', '.join(splits)}.")
    return {
        split: replace(train, annotations=annotations, part=part, is_own=split != "train")
        for split, (annotations, part) in splits.items()
    }


def read_sources(
    sources: Mapping[str, AnnotationSource], plan: ImportPlan, workers: int | None = None
) -> tuple[dict[str, list[AnnotatedImage]], dict[str, ClassCount], dict[str, int]]:
    """
    Find the images of all sources, then read the segments; raise DataFaults if faults are found.

    Returns:
        images: the images of each split, sorted by name
        classes: the numbers of images and segments of each class, over all splits
        missing: the number of images left out of each split because their files are missing
    """
    faults: list[str] = []
    entries: dict[str, list[tuple[str, tuple[AnnotatedImage, Any]]]] = {}
    missing, readers = {}, {}
    drafted: dict[str, ClassCount] = {}
    for split, source in sources.items():
        options = {"polygons": plan.polygons, "part": source.part}
        options = {key: value for key, value in options.items() if value is not None}
        read = ANNOTATION_FORMATS[plan.format].read
        annotations = read(source.annotations, source.images, **options)
        readers[split] = annotations.read
        with gathering(faults):
            entries[split] = annotations.found(skip_missing=plan.skip_missing)
            if len(entries[split]) < len(annotations.entries):
                missing[split] = len(annotations.entries) - len(entries[split])
            for _, (draft, entry) in entries[split]:
                if annotations.drafts:
                    add_classes(drafted, replace(draft, segments=annotations.drafts(entry)))
    raise_if_any(faults)
    for split in [s for s, listed in entries.items() if not listed and sources[s].is_own]:
        logger.warning(f"{sources[split].annotations}: left out {split}, which has no images.")
        del entries[split]
    raise_if_any(list(_name_faults(sources, entries)))
    has_faults = any(any(faults_of_class(name, [0, 0, 0])) for name in drafted)
    if not (has_faults or plan.label_space):  # label PNGs add classes
        # Ask for things and stuff now, not after minutes of reading masks.
        resolve_kinds(dict(sorted(drafted.items())), plan.kinds, None, plan.rest, plan.semantic)
    images: dict[str, list[AnnotatedImage]] = {}
    classes: dict[str, ClassCount] = {}
    for split, listed in entries.items():
        work = partial(_read, readers[split], sources[split], plan)
        images[split] = []
        for image in imap_with_progress(work, listed, f"read {split}", workers):
            if isinstance(image, list):
                faults += image
            else:
                images[split].append(image)
                add_classes(classes, image)
        images[split] = _with_own_stems(images[split])
    place = ", ".join(str(source.annotations) for source in sources.values())
    for name in classes:
        faults += [f"{place}: class {name!r}: {f}" for f in faults_of_class(name, [0, 0, 0])]
    raise_if_any(faults)
    if not classes:
        raise UserError("No image has any segments. Export polygons or masks.")
    classes = dict(sorted(classes.items()))
    if plan.crowds is None and not plan.semantic:
        check_crowds(classes)
    if plan.split is not None:
        images = split_images(images["train"], plan.split)
    return images, classes, missing


def _name_faults(
    sources: Mapping[str, AnnotationSource], entries: Mapping[str, list]
) -> Iterator[str]:
    owners: dict[str, str] = {}
    for split, listed in entries.items():
        place, images = sources[split].annotations, [image for _, (image, _) in listed]
        for image in images:
            other = owners.setdefault(os.path.realpath(image.file), split)
            if other != split:
                yield f"{image.file}: the image is in {other} and {split}. Remove it from one."
        if not images:
            yield f"{place}: no image has annotations. Is this the right file or folder?"
        for name, times in repeated(image.name for image in images):
            yield f"{place}: {times} images are named {name}. Rename all but one."


def _with_own_stems(images: Sequence[AnnotatedImage]) -> list[AnnotatedImage]:
    """
    Sort images by name; x.jpg beside x.png becomes x.jpg.jpg, because labels are x.jpg.png.

    If x.jpg is the stem of another image, x.jpg becomes x.jpg.jpg.jpg.
    """

    def stem(name: str) -> PurePosixPath:
        return PurePosixPath(name).with_suffix("")

    stems = Counter(stem(image.name) for image in images)
    named = []
    for image in sorted(images, key=lambda image: image.name):
        name = image.name
        if stems[stem(name)] > 1:
            while stems[stem(name)]:
                name += PurePosixPath(name).suffix
            stems[stem(name)] = 1
        named.append(replace(image, name=name))
    return sorted(named, key=lambda image: image.name)


def _read(
    read: Callable[[AnnotatedImage, Any], AnnotatedImage],
    source: AnnotationSource,
    plan: ImportPlan,
    entry: tuple[str, tuple[AnnotatedImage, Any]],
) -> AnnotatedImage | list[str]:
    def read_one(entry: tuple[AnnotatedImage, Any]) -> AnnotatedImage:
        image = read(*entry)
        if source.labels and plan.label_space:
            image = above_labels(image, source.labels, plan.label_space)
        return image

    try:
        (image,) = read_each([entry], read_one)
    except DataFaults as error:
        return error.faults
    # The format's void class and rest class are renamed unless the user lists them.
    format, kinds = ANNOTATION_FORMATS[plan.format], plan.kinds or Kinds()
    names = {format.void_class: VOID, format.rest_class: plan.rest or VOID}
    for listed in (None, *kinds.classes, *kinds.ignore):
        names.pop(listed, None)
    segments = [
        replace(
            segment,
            label=names.get(segment.label, segment.label),
            is_crowd=segment.is_crowd and plan.crowds != "objects",
            is_traced=segment.is_traced and plan.polygons is None,
        )
        for segment in image.segments
    ]
    return replace(image, segments=segments)


def split_images(images: Sequence[AnnotatedImage], share: float) -> dict[str, list[AnnotatedImage]]:
    """
    Divide images by a hash of their names into "train" and "val", each with at least one image.

    Args:
        share: share of the images for training.
    """
    if len(images) < 2:
        raise UserError(f"--split {share}: at least 2 images are needed, found {len(images)}.")

    def shuffled(image: AnnotatedImage) -> str:
        # No new version of a library changes this hash, unlike random numbers. The 0 keeps the
        # split of earlier imports.
        return hashlib.blake2b(json.dumps([0, image.name]).encode(), digest_size=16).hexdigest()

    order = sorted(images, key=shuffled)
    count = min(max(1, int(share * len(images) + 0.5)), len(images) - 1)
    parts = {"train": order[:count], "val": order[count:]}
    return {split: sorted(part, key=lambda image: image.name) for split, part in parts.items()}


def above_labels(image: AnnotatedImage, folder: Path, space: LabelSpace) -> AnnotatedImage:
    """Add the regions of the image's label PNG below the segments; return the new image."""
    path = folder / PurePosixPath(image.name).with_suffix(".png")
    labels = read_labels(path, space.label_map)
    if labels.shape != (image.height, image.width):
        raise UserError(
            f"{path}: the label PNG has {labels.shape[1]}x{labels.shape[0]} pixels, but the image "
            f"has {image.width}x{image.height} (width x height)."
        )
    numbers = labels.astype("int32") + 1
    numbers[numbers > len(space.classes)] = 0
    regions = [
        Segment(space.classes[number - 1], mask, instance=False)
        for number, mask in masks_of_map(numbers)
    ]
    return replace(image, segments=[*regions, *image.segments])
