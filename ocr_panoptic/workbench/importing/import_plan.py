"""The annotations that a user names, the way they become a data set, and their images."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ocr_panoptic.data.classes import faults_of_class
from ocr_panoptic.data.faults import gathering, raise_if_any, repeated
from ocr_panoptic.data.semantic.label_space import LabelSpace
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.labels import read_labels

from .annotated_image import AnnotatedImage, Segment, SegmentWriter
from .drawing import png_name
from .formats import ANNOTATION_FORMATS
from .kinds import ClassCount, Kinds, add_classes, check_crowds
from .masks import masks_of_map
from .reading import each
from .splitting import split_images

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnnotationSource:
    """The files that a user names for one split.

    Attributes:
        annotations: file or folder, as the format has it.
        images: folder of images; None where the format says where they are.
        labels: folder of semantic label PNGs under the annotations, or None.
        part: of the annotations, where only that is meant, as the format names it.
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
        kinds: what the classes are, where the user says it.
        label_space: of the label PNGs, where there are any.
        overlap: key of :data:`.painting.OVERLAPS`; None for the format's own.
        crowds: what segments are that the annotations mark as crowds: "groups" of objects, or
            "objects" each; None where it is clear: see :func:`.kinds.check_crowds`.
        polygons: of :data:`.masks.POLYGONS`; None for the format's own.
        rest: class of stuff that pixels of no segment get; None for void.
        split: share of the images that is for training, the others for validation; None where the
            user has divided them.
        seed, group_by: see :func:`.splitting.split_images`.
        semantic: a data set of one label for each pixel, not a panoptic one.
    """

    format: str
    kinds: Kinds | None = None
    label_space: LabelSpace | None = None
    overlap: str | None = None
    crowds: str | None = None
    polygons: str | None = None
    rest: str | None = None
    split: float | None = None
    seed: int = 0
    group_by: str | None = None
    semantic: bool = False


def check_plan(sources: Mapping[str, AnnotationSource], plan: ImportPlan) -> None:
    """Raise ValueError for options that do not fit together."""
    if plan.split is not None and "val" in sources:
        raise UserError("Give --split or --val: with both it is not said what is for validation.")
    if plan.split is None and plan.group_by is not None:
        raise UserError("--group-by says how --split divides the images; give --split, too.")
    if plan.overlap is not None and ANNOTATION_FORMATS[plan.format].overlap is None:
        raise UserError(f"--overlap: the segments of {plan.format} do not overlap; leave it out.")
    if plan.polygons is not None and not ANNOTATION_FORMATS[plan.format].has_polygons:
        raise UserError(
            f"--polygons: is said of coco and yolo-seg, not {plan.format}; leave it out."
        )
    if any(source.labels for source in sources.values()) != (plan.label_space is not None):
        raise UserError(
            "Label PNGs (after the folder of images) and --label-classes, the file of their "
            "classes, belong together: give both or none."
        )
    if plan.label_space is not None and not all(source.labels for source in sources.values()):
        raise UserError("Give a folder of label PNGs for each of --train and --val.")


def with_own_splits(
    sources: Mapping[str, AnnotationSource], plan: ImportPlan
) -> Mapping[str, AnnotationSource]:
    """The splits of the source, where it has several and the user says nothing of them."""
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
    sources: Mapping[str, AnnotationSource], plan: ImportPlan, folder: Path
) -> tuple[dict[str, list[AnnotatedImage]], dict[str, ClassCount]]:
    """
    Args:
        folder: for a file of the segments of all images.

    Returns:
        the images of each split, in the order of their names; the classes of all.

    Raises:
        FileNotFoundError, ValueError: as the format's reader.
        ValueError: also where it is not clear what crowds are, or there are no scores to go by.
        DataFaults: those of all images; images of one name, or in two splits; a split without any.
    """
    images: dict[str, list[AnnotatedImage]] = {}
    found: dict[str, ClassCount] = {}
    faults: list[str] = []
    has_scores = False
    with SegmentWriter(folder / "segments") as writer:
        for split, source in sources.items():
            images[split] = []
            with gathering(faults):
                for image in _read(source, plan):
                    known = len(found)
                    add_classes(found, image)
                    for name in [*found][known:]:
                        place = f"{source.annotations}: {image.name}: class {name!r}"
                        faults += [f"{place}: {f}" for f in faults_of_class(name, [0, 0, 0])]
                    has_scores |= any(segment.score is not None for segment in image.segments)
                    stored = writer.add(image.segments, (image.height, image.width))
                    images[split].append(replace(image, segments=stored))
    raise_if_any(faults)
    found = dict(sorted(found.items()))
    if plan.crowds is None and not plan.semantic:
        check_crowds(found)
    if plan.overlap == "score" and not has_scores:
        raise UserError("--overlap score: no annotation has a score. Give another, or none.")
    for split, listed in images.items():
        listed.sort(key=lambda image: image.name)
        source = sources[split].annotations
        faults += [f"{source}: {fault}" for fault in _faults_of_names(listed)]
    if plan.split is not None:
        raise_if_any(faults)
        return split_images(images["train"], plan.split, plan.seed, plan.group_by), found
    owners: dict[str, str] = {}
    for split, listed in images.items():
        for image in listed:
            other = owners.setdefault(os.path.realpath(image.file), split)
            if other != split:
                faults.append(f"{image.file}: is in both {other} and {split}.")
    raise_if_any(faults)
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


def _faults_of_names(images: list[AnnotatedImage]) -> Iterator[str]:
    """Yield the faults in the names of a split's images."""
    if not images:
        yield "no image is annotated."
    for png, times in repeated(map(png_name, images)):
        name = PurePosixPath(png).with_suffix("")
        yield f"{times} images are named {name}, but for their ends."


def classes_found(classes: Mapping[str, ClassCount], plan: ImportPlan) -> str:
    """Return the classes of the annotations as a sentence."""
    ids = ANNOTATION_FORMATS[plan.format].ids
    listed = [f"{name} (id {ids[name]})" if name in ids else name for name in classes]
    return f"Found: {', '.join(listed) or 'no segment'}."


def above_labels(
    images: Iterable[AnnotatedImage], folder: Path, space: LabelSpace
) -> Iterator[AnnotatedImage]:
    """
    The images with a region below their segments for each class that their label PNG shows.

    Args:
        folder: of the label PNGs; an image's has its name, but for the suffix.

    Raises:
        FileNotFoundError: there is no such folder.
        DataFaults: at the end: a missing or broken PNG, of another size than the image, or with a
            label that the space lacks.
    """
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: folder of label PNGs not found.")
    yield from each(images, lambda image: _above(image, folder, space))


def _above(image: AnnotatedImage, folder: Path, space: LabelSpace) -> AnnotatedImage:
    path = folder / PurePosixPath(image.name).with_suffix(".png")
    labels = read_labels(path, space.label_map)
    if labels.shape != (image.height, image.width):
        raise UserError(
            f"{path}: the label PNG has {labels.shape[1]}x{labels.shape[0]} pixels, the image "
            f"{image.file} {image.width}x{image.height} (width x height)."
        )
    numbers = labels.astype("int32") + 1
    numbers[numbers > len(space.classes)] = 0
    regions = [
        Segment(space.classes[number - 1], mask, instance=False)
        for number, mask in masks_of_map(numbers)
    ]
    return replace(image, segments=[*regions, *image.segments])
