"""The plan of an import, and the images and segments of its sources."""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

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
from .reading import Annotations

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnnotationSource:
    """
    The files that a user names for a split.

    Attributes:
        annotations: file or folder, depending on the format.
        images: folder of images; None if the format knows their place.
        labels: folder of semantic label PNGs, over which the annotations are painted.
        part: the format's name for the part of the annotations to read; None for all.
    """

    annotations: Path
    images: Path | None = None
    labels: Path | None = None
    part: str | None = None


@dataclass(frozen=True)
class ImportPlan:
    """
    The options of an import.

    Attributes:
        format: key of :data:`.formats.ANNOTATION_FORMATS`.
        kinds: kinds of the classes, if the user gives a list.
        label_space: classes of the label PNGs, if the user gives label PNGs.
        crowds: meaning of segments marked as crowds: "groups" of objects, or single "objects"; None
            refuses unclear cases (see :func:`.kinds.check_crowds`).
        polygons: value of :data:`.masks.POLYGONS`; None for the format's default.
        rest: stuff class for pixels without a segment; None for void.
        split: share of the images for training (the others are for validation); None if the user
            names both parts.
        semantic: whether to make a semantic data set instead of a panoptic data set.
        skip_missing: whether to leave out missing images.
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


class Sources(NamedTuple):
    """
    The contents of all sources.

    Attributes:
        images: split -> images, sorted by name.
        classes: class name -> its counts over all splits.
        missing: split -> number of images that were missing and left out.
    """

    images: dict[str, list[AnnotatedImage]]
    classes: dict[str, ClassCount]
    missing: dict[str, int]


def check_plan(sources: Mapping[str, AnnotationSource], plan: ImportPlan) -> None:
    """Raise UserError for options that do not fit together."""
    if plan.split is not None and "val" in sources:
        raise UserError(
            "Give --split or --val, not both: each of them chooses the validation part."
        )
    if plan.split is not None and not 0 < plan.split < 1:
        raise UserError(f"--split is {plan.split}: the share for training lies between 0 and 1.")
    if plan.polygons is not None and not ANNOTATION_FORMATS[plan.format].has_polygons:
        raise UserError(f"--polygons does not apply to {plan.format}; leave it out.")
    has_labels = {source.labels is not None for source in sources.values()}
    if has_labels != {plan.label_space is not None}:
        raise UserError(
            "Label PNGs (after the folder of images, for each of --train and --val) and "
            "--label-classes, the file of their classes, belong together: give both or neither."
        )
    for source in sources.values():
        if source.labels is not None and not source.labels.is_dir():
            raise MissingFileError(f"{source.labels}: folder of label PNGs not found.")


def with_own_splits(
    sources: Mapping[str, AnnotationSource], plan: ImportPlan
) -> Mapping[str, AnnotationSource]:
    """
    Return the source's own splits if the user names only "train" without images.

    Otherwise return the sources unchanged. With --split, several own splits are merged before the
    division.
    """
    train = sources["train"]
    if sources.keys() != {"train"} or train.images:
        return sources
    splits = ANNOTATION_FORMATS[plan.format].splits(train.annotations)
    if not splits or (len(splits) == 1 and [*splits.values()] == [(train.annotations, None)]):
        return sources
    if len(splits) == 1:  # a single split is for training, whatever its name
        splits = {"train": next(iter(splits.values()))}
    elif plan.split is not None:
        return sources
    logger.info(f"{train.annotations}: its own splits are taken: {', '.join(splits)}.")
    return {
        split: replace(train, annotations=annotations, part=part)
        for split, (annotations, part) in splits.items()
    }


def read_sources(
    sources: Mapping[str, AnnotationSource], plan: ImportPlan, workers: int | None = None
) -> Sources:
    """
    Find the images of all sources, then read their segments.

    DataFaults lists faults of single images, splits without images, images with equal names, and
    images in two splits.

    Args:
        workers: number of processes, see :func:`.imap_with_progress`.
    """
    annotations = {split: _annotations(source, plan) for split, source in sources.items()}
    found: dict[str, list[tuple[str, tuple[AnnotatedImage, Any]]]] = {}
    faults: list[str] = []
    for split, source in annotations.items():
        with gathering(faults):
            found[split] = source.found(skip_missing=plan.skip_missing)
    raise_if_any(faults)
    raise_if_any(list(_name_faults(sources, found)))
    missing = {s: n for s in found if (n := len(annotations[s].entries) - len(found[s]))}
    _ask_for_kinds(annotations, found, plan)
    images: dict[str, list[AnnotatedImage]] = {}
    classes: dict[str, ClassCount] = {}
    for split, listed in found.items():
        reader = replace(annotations[split], entries=(), labels=None)  # small enough to pickle
        read = partial(_read, reader, sources[split], plan)
        known, images[split] = len(classes), []
        for image in imap_with_progress(read, listed, f"read {split}", workers):
            if isinstance(image, list):
                faults += image
            else:
                images[split].append(image)
                add_classes(classes, image)
        images[split].sort(key=lambda image: image.name)
        for name in [*classes][known:]:
            place = f"{sources[split].annotations}: class {name!r}"
            faults += [f"{place}: {fault}" for fault in faults_of_class(name, [0, 0, 0])]
    raise_if_any(faults)
    if not classes:
        shapes = Counter(kind for listed in images.values() for i in listed for kind in i.left_out)
        kinds = [f"{kind} ({number})" for kind, number in sorted(shapes.items())]
        lost = f"; shapes without area are left out: {', '.join(kinds)}" if kinds else ""
        raise UserError(f"No image has a segment{lost}. Export polygons or masks.")
    classes = dict(sorted(classes.items()))
    if plan.crowds is None and not plan.semantic:
        check_crowds(classes)
    if plan.split is not None:
        images = split_images(images["train"], plan.split)
    return Sources(images, classes, missing)


def _ask_for_kinds(
    annotations: Mapping[str, Annotations], found: Mapping[str, list], plan: ImportPlan
) -> None:
    """
    Call :func:`.resolve_kinds` before any pixels are read, so that a refusal comes early.

    This needs a format that can list classes without pixels.
    """
    classes: dict[str, ClassCount] = {}
    names = _own_names(plan)
    for split, listed in found.items():
        if (labels_of := annotations[split].labels) is None:
            return
        for _, (image, entry) in listed:
            try:
                labels = list(labels_of(entry))
            except Exception:  # a broken entry is reported when it is read
                return
            segments = [
                Segment(names.get(label, label), {}, annotations[split].instance)
                for label in labels
            ]
            add_classes(classes, replace(image, segments=segments))
    own = ANNOTATION_FORMATS[plan.format].kinds
    if not any([*faults_of_class(name, [0, 0, 0])] for name in classes):
        resolve_kinds(dict(sorted(classes.items())), plan.kinds, own, plan.rest, plan.semantic)


def _annotations(source: AnnotationSource, plan: ImportPlan) -> Annotations:
    options = {"polygons": plan.polygons, "part": source.part}
    options = {key: value for key, value in options.items() if value is not None}
    return ANNOTATION_FORMATS[plan.format].read(source.annotations, source.images, **options)


def _name_faults(
    sources: Mapping[str, AnnotationSource], found: Mapping[str, list]
) -> Iterator[str]:
    owners: dict[str, str] = {}
    for split, listed in found.items():
        place, images = sources[split].annotations, [image for _, (image, _) in listed]
        for image in images:
            other = owners.setdefault(os.path.realpath(image.file), split)
            if other != split:
                yield f"{image.file}: is in both {other} and {split}."
        if not images:
            yield f"{place}: no image is annotated."
        for stem, times in repeated(PurePosixPath(i.name).with_suffix("") for i in images):
            yield f"{place}: {times} images are named {stem}, apart from their suffixes."


def _read(
    annotations: Annotations, source: AnnotationSource, plan: ImportPlan, found: tuple
) -> AnnotatedImage | list[str]:
    """Return an image with its segments, or its faults."""
    try:
        image = annotations.segments_of(found)
        if source.labels and plan.label_space:
            image = above_labels(image, source.labels, plan.label_space)
    except DataFaults as error:
        return error.faults
    except (UserError, OSError) as error:
        return [str(error)]
    changes: dict[str, Any] = {} if plan.crowds != "objects" else {"is_crowd": False}
    names = _own_names(plan)
    segments = [replace(s, label=names.get(s.label, s.label), **changes) for s in image.segments]
    return replace(image, segments=segments)


def _own_names(plan: ImportPlan) -> dict[str | None, str]:
    """Return new names for the format's void and rest classes if the user's kinds lack them."""
    own = ANNOTATION_FORMATS[plan.format]
    listed = (*plan.kinds.classes, *plan.kinds.ignore) if plan.kinds else ()
    names = {own.void_class: VOID, own.rest_class: plan.rest or VOID}
    return {name: other for name, other in names.items() if name and name not in listed}


def split_images(images: Sequence[AnnotatedImage], share: float) -> dict[str, list[AnnotatedImage]]:
    """
    Divide images into ``train`` and ``val``, each with at least one image.

    The parts depend only on the names of the images, not on their order.

    Args:
        share: share of the images for training.
    """
    if len(images) < 2:
        raise UserError(f"--split {share}: there is only {len(images)} image to divide.")

    def shuffled(image: AnnotatedImage) -> str:
        # A hash is as good as random, and no library can change it. The 0 keeps the parts of old
        # imports.
        return hashlib.blake2b(json.dumps([0, image.name]).encode(), digest_size=16).hexdigest()

    order = sorted(images, key=shuffled)
    count = min(max(1, int(share * len(images) + 0.5)), len(images) - 1)
    parts = {"train": order[:count], "val": order[count:]}
    return {split: sorted(part, key=lambda image: image.name) for split, part in parts.items()}


def above_labels(image: AnnotatedImage, folder: Path, space: LabelSpace) -> AnnotatedImage:
    """
    Return an image with the classes of its label PNG added as regions below its segments.

    Args:
        folder: folder of the label PNGs, named like the images except for the suffix.
    """
    path = folder / PurePosixPath(image.name).with_suffix(".png")
    labels = read_labels(path, space.label_map)
    if labels.shape != (image.height, image.width):
        raise UserError(
            f"{path}: the label PNG has {labels.shape[1]}x{labels.shape[0]} pixels, the image "
            f"{image.width}x{image.height} (width x height)."
        )
    numbers = labels.astype("int32") + 1
    numbers[numbers > len(space.classes)] = 0
    regions = [
        Segment(space.classes[number - 1], mask, instance=False)
        for number, mask in masks_of_map(numbers)
    ]
    return replace(image, segments=[*regions, *image.segments])
