"""The annotations that a user names, the way they become a data set, and their images."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from ocr_panoptic.data.classes import faults_of_class
from ocr_panoptic.data.faults import gathering, raise_if_any, repeated
from ocr_panoptic.data.semantic.label_space import LabelSpace
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.labels import read_labels

from .annotated_image import AnnotatedImage, Segment
from .formats import ANNOTATION_FORMATS
from .kinds import ClassCount, Kinds, add_classes, check_crowds
from .masks import masks_of_map
from .reading import each

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnnotationSource:
    """The files that a user names for one split.

    Attributes:
        annotations: file or folder, as the format has it.
        images: folder of images; None if the format says where they are.
        labels: folder of semantic label PNGs under the annotations.
        part: part of the annotations, as the format names it, if only that is meant.
    """

    annotations: Path
    images: Path | None = None
    labels: Path | None = None
    part: str | None = None


@dataclass(frozen=True)
class ImportPlan:
    """The way annotations become a data set.

    Attributes:
        format: key of :data:`.formats.ANNOTATION_FORMATS`.
        kinds: what the classes are, if the user says it.
        label_space: classes of the label PNGs, if there are any.
        crowds: what segments are that the annotations mark as crowds: "groups" of objects, or
            "objects" each; None if it is clear: see :func:`.kinds.check_crowds`.
        polygons: one of :data:`.masks.POLYGONS`; None for the format's own.
        rest: class of stuff for pixels without segment; None for void.
        split: share of the images for training, the others are for validation; None if the user
            has divided them.
        semantic: whether each pixel gets one label, in place of a panoptic data set.
    """

    format: str
    kinds: Kinds | None = None
    label_space: LabelSpace | None = None
    crowds: str | None = None
    polygons: str | None = None
    rest: str | None = None
    split: float | None = None
    semantic: bool = False


def check_plan(sources: Mapping[str, AnnotationSource], plan: ImportPlan) -> None:
    """Raise UserError for options that do not fit together."""
    if plan.split is not None and "val" in sources:
        raise UserError("Give --split or --val: with both it is not said what is for validation.")
    if plan.split is not None and not 0 < plan.split < 1:
        raise UserError(f"--split is {plan.split}: the share for training lies between 0 and 1.")
    if plan.polygons is not None and not ANNOTATION_FORMATS[plan.format].has_polygons:
        raise UserError(f"--polygons: {plan.format} has one notion of them; leave it out.")
    has_labels = {source.labels is not None for source in sources.values()}
    if has_labels != {plan.label_space is not None}:
        raise UserError(
            "Label PNGs (after the folder of images, for each of --train and --val) and "
            "--label-classes, the file of their classes, belong together: give both or none."
        )


def with_own_splits(
    sources: Mapping[str, AnnotationSource], plan: ImportPlan
) -> Mapping[str, AnnotationSource]:
    """Return the splits of the source if it has several and the user says nothing of them."""
    train = sources["train"]
    if sources.keys() != {"train"} or train.images or plan.split is not None:
        return sources
    splits = ANNOTATION_FORMATS[plan.format].splits(train.annotations)
    if len(splits) < 2:
        return sources
    logger.info(f"{train.annotations}: its own splits are taken: {', '.join(splits)}.")
    return {
        split: replace(train, annotations=annotations, part=part)
        for split, (annotations, part) in splits.items()
    }


def read_sources(
    sources: Mapping[str, AnnotationSource], plan: ImportPlan
) -> tuple[dict[str, list[AnnotatedImage]], dict[str, ClassCount]]:
    """Return the images of each split, sorted by name, and the classes of all.

    Besides faults of single images, it raises DataFaults for a split without images, for images of
    one name, and for an image in two splits.
    """
    images: dict[str, list[AnnotatedImage]] = {}
    found: dict[str, ClassCount] = {}
    faults: list[str] = []
    owners: dict[str, str] = {}
    for split, source in sources.items():
        images[split], known = [], len(found)
        with gathering(faults):
            for image in _read(source, plan):
                images[split].append(image)
                add_classes(found, image)
                other = owners.setdefault(os.path.realpath(image.file), split)
                if other != split:
                    faults.append(f"{image.file}: is in both {other} and {split}.")
            images[split].sort(key=lambda image: image.name)
            for name in [*found][known:]:
                place = f"{source.annotations}: class {name!r}"
                faults += [f"{place}: {fault}" for fault in faults_of_class(name, [0, 0, 0])]
            stems = [PurePosixPath(image.name).with_suffix("") for image in images[split]]
            if not stems:
                faults.append(f"{source.annotations}: no image is annotated.")
            for stem, times in repeated(stems):
                faults.append(
                    f"{source.annotations}: {times} images are named {stem}, but for their ends."
                )
    raise_if_any(faults)
    found = dict(sorted(found.items()))
    if plan.crowds is None and not plan.semantic:
        check_crowds(found)
    if plan.split is not None:
        images = split_images(images["train"], plan.split)
    return images, found


def _read(source: AnnotationSource, plan: ImportPlan) -> Iterable[AnnotatedImage]:
    options = {"polygons": plan.polygons, "part": source.part}
    options = {key: value for key, value in options.items() if value is not None}
    found = ANNOTATION_FORMATS[plan.format].read(source.annotations, source.images, **options)
    if source.labels is not None:
        found = above_labels(found, source.labels, plan.label_space)
    if plan.crowds != "objects":
        return found
    return (replace(i, segments=[replace(s, is_crowd=False) for s in i.segments]) for i in found)


def split_images(images: Sequence[AnnotatedImage], share: float) -> dict[str, list[AnnotatedImage]]:
    """Divide images into ``train`` and ``val``, neither of them empty.

    Equal names give equal parts, in whatever order the images come.

    Args:
        share: share of the images for training.
    """
    if len(images) < 2:
        raise UserError(f"--split {share}: there is only {len(images)} image to divide.")

    def shuffled(image: AnnotatedImage) -> str:
        # As good as at random, and no library's to change. The 0 keeps the parts of old imports.
        return hashlib.blake2b(json.dumps([0, image.name]).encode(), digest_size=16).hexdigest()

    order = sorted(images, key=shuffled)
    count = min(max(1, int(share * len(images) + 0.5)), len(images) - 1)
    parts = {"train": order[:count], "val": order[count:]}
    return {split: sorted(part, key=lambda image: image.name) for split, part in parts.items()}


def above_labels(
    images: Iterable[AnnotatedImage], folder: Path, space: LabelSpace
) -> Iterator[AnnotatedImage]:
    """Yield the images with a region below their segments for each class of their label PNG.

    Args:
        folder: folder of the label PNGs, which have the names of the images except for the suffix.
    """
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: folder of label PNGs not found.")
    read = partial(_above, folder=folder, space=space)
    yield from each(((str(image.file), image) for image in images), read)


def _above(image: AnnotatedImage, folder: Path, space: LabelSpace) -> AnnotatedImage:
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
