"""Annotations of any format as a panoptic or a semantic data set.

What is written below the folder of the data set:

    <name>.yaml                 the data file, last of all
    raw/import.json             what was imported and what was lost; it marks raw/ as this module's
    raw/<split>/images/         links to the images
    raw/<split>/panoptic/       panoptic PNGs, and
    raw/<split>/panoptic.json   the panoptic JSON; or
    raw/<split>/semantic/       label PNGs
"""

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ocr_panoptic.data.classes import faults_of_class
from ocr_panoptic.data.data_file import (
    PanopticSplit,
    SemanticSplit,
    check_new_name,
    read_data_file,
    write_data_file,
)
from ocr_panoptic.data.faults import first_few, gathering, raise_if_any
from ocr_panoptic.data.panoptic.categories import Category
from ocr_panoptic.data.semantic.label_space import LabelSpace
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import write_panoptic_json
from ocr_panoptic.formats.files import check_output_folder, locked, printable, write_json

from .annotated_image import AnnotatedImage, without_crowds
from .drawing import IMAGES, Drawing, Drawn, link_images, png_name, remove_others
from .formats import ANNOTATION_FORMATS
from .kinds import (
    ClassCount,
    Kinds,
    add_classes,
    check_classes,
    check_crowds,
    resolve_kinds,
)
from .label_pngs import above_labels
from .painting import Losses
from .reading import read_object
from .splitting import split_images
from .stored_segments import SegmentWriter

logger = logging.getLogger(__name__)

RAW = "raw"
RECORD = "import.json"
RECORD_FORMAT = "ocr_panoptic.import"


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


def import_annotations(
    name: str,
    sources: Mapping[str, AnnotationSource],
    plan: ImportPlan,
    output: Path,
    workers: int | None = None,
) -> Path:
    """Read annotations, and write them as this module's text says. Equal ones give equal files.

    Args:
        name: data sets are registered as ``<name>_<split>``.
        sources: "train", and perhaps "val"; of "train" alone, its own splits are taken.
        output: folder of the data set.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the data file.

    Raises:
        FileNotFoundError, DataFaults: missing or broken files, annotations that contradict
            themselves or their images; all are named. Then nothing has been written.
        ValueError: options that do not fit together; a name that is taken; an ``output`` that
            cannot be written, into which another process imports, or that holds other data.
    """
    _check_plan(sources, plan)
    sources = _with_own_splits(sources, plan)
    check_new_name(name, ("train", "val") if plan.split is not None else sources, output)
    _check_free(output, name, "semantic" if plan.semantic else "panoptic")
    source_format = ANNOTATION_FORMATS[plan.format]
    with _importing(output) as folder:
        images, found = read_sources(sources, plan, folder)
        kinds = resolve_kinds(found, plan.kinds, source_format.kinds, plan.rest, plan.semantic)
        check_classes(kinds, plan.semantic)
        overlap = plan.overlap or source_format.overlap or "order"
        drawing = Drawing(kinds, overlap, plan.rest, plan.semantic)
        drawn: dict[str, Drawn] = {}
        faults: list[str] = []
        for split, listed in images.items():
            with gathering(faults):
                drawn[split] = drawing.draw_all(listed, folder / split, workers)
        if not plan.semantic:
            faults += [
                f"{split}: no image shows any class, all pixels are void. {_found(found, plan)}"
                for split, found_in in drawn.items()
                if set(found_in.segments) == {"[]"}
            ]
        raise_if_any(faults)
        _tell_kinds(kinds, found, plan)
        return _write(name, output, images, drawn, folder, drawing, plan)


@contextmanager
def _importing(output: Path) -> Iterator[Path]:
    """A folder for what is drawn until all of it is, and no other import beside it.

    Raises:
        ValueError: ``output`` cannot be written, or another process imports into it.
    """
    made = [path for path in (output, *output.parents) if path == output or not path.exists()]
    fix = "Give another --output, or set DETECTRON2_DATASETS to a folder that you can write."
    check_output_folder(output, "The output folder", fix)
    folder = output / ".import"
    try:
        with locked(output / ".import.lock", wait=False):
            shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError as error:
        raise UserError(
            f"{printable(output)}: another process imports data there. Wait for its end, or give "
            "another --name or --output."
        ) from error
    finally:
        with suppress(OSError):  # where nothing was written
            for path in made:
                path.rmdir()


def _write(
    name: str,
    output: Path,
    images: Mapping[str, list[AnnotatedImage]],
    drawn: Mapping[str, Drawn],
    folder: Path,
    drawing: Drawing,
    plan: ImportPlan,
) -> Path:
    raw, file = output / RAW, output / f"{name}.yaml"
    losses = {split: parts.losses for split, parts in drawn.items()}
    file.unlink(missing_ok=True)  # until its files are complete
    # The record comes first: it says whose the files beside it are.
    write_json(raw / RECORD, _record(plan, drawing, losses), indent=1)
    wanted = {raw / RECORD}
    for split, listed in images.items():
        wanted |= {raw / split / IMAGES / image.name for image in listed}
        wanted |= {raw / split / drawing.folder / png_name(image) for image in listed}
        wanted.add(raw / split / "panoptic.json")
    for unfinished in raw.rglob(".*.tmp"):  # of an import that was killed
        unfinished.unlink()
    remove_others(raw, wanted)
    for split, listed in images.items():
        for png in map(png_name, listed):
            target = raw / split / drawing.folder / png
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / split / png, target)
        link_images(listed, raw / split / IMAGES)
        _tell_losses(split, len(listed), losses[split], drawing)
    if drawing.semantic:
        classes = [{"name": n, "color": drawing.kinds.color(n)} for n in drawing.kinds.classes]
        folders = {s: SemanticSplit(raw / s / IMAGES, raw / s / drawing.folder) for s in images}
        write_data_file(file, name, folders, classes=classes)
        return file
    splits = {
        s: PanopticSplit(raw / s / IMAGES, raw / s / "panoptic.json", raw / s / "panoptic")
        for s in images
    }
    for split, listed in images.items():
        _write_panoptic_json(
            splits[split].annotations, listed, drawn[split].segments, drawing.kinds
        )
    write_data_file(file, name, splits)
    return file


def _write_panoptic_json(
    path: Path, images: list[AnnotatedImage], segments: list[str], kinds: Kinds
) -> None:
    categories = [
        Category(place, name, name in kinds.things, kinds.color(name)).as_json()
        for place, name in enumerate(kinds.classes, 1)
    ]
    entries = (
        (
            {"id": number, "file_name": image.name, "height": image.height, "width": image.width},
            {"image_id": number, "file_name": png_name(image), "segments_info": json.loads(text)},
        )
        for number, (image, text) in enumerate(zip(images, segments, strict=True), 1)
    )
    write_panoptic_json(path, entries, categories)


def _with_own_splits(
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
                    add_classes(found, image)
                    has_scores |= any(segment.score is not None for segment in image.segments)
                    stored = writer.add(image.segments, (image.height, image.width))
                    images[split].append(replace(image, segments=stored))
    raise_if_any(faults)
    found = dict(sorted(found.items()))
    if plan.crowds is None and not plan.semantic:
        check_crowds(found)
    if plan.overlap == "score" and not has_scores:
        raise UserError("--overlap score: no annotation has a score. Give another, or none.")
    faults += [
        f"class {name!r}: {fault}" for name in found for fault in faults_of_class(name, [0, 0, 0])
    ]
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
    return map(without_crowds, found) if plan.crowds == "objects" else found


def _faults_of_names(images: list[AnnotatedImage]) -> Iterator[str]:
    """Yield the faults in the names of a split's images."""
    if not images:
        yield "no image is annotated."
    for png, times in Counter(map(png_name, images)).items():
        if times > 1:
            name = PurePosixPath(png).with_suffix("")
            yield f"{times} images are named {name}, but for their ends."


def _found(classes: Mapping[str, ClassCount], plan: ImportPlan) -> str:
    """Return the classes of the annotations as a sentence."""
    ids = ANNOTATION_FORMATS[plan.format].ids
    listed = [f"{name} (id {ids[name]})" if name in ids else name for name in classes]
    return f"Found: {', '.join(listed) or 'no segment'}."


def _check_plan(sources: Mapping[str, AnnotationSource], plan: ImportPlan) -> None:
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


def _check_free(output: Path, name: str, kind: str) -> None:
    """Refuse to write over what no earlier import has written.

    Raises:
        ValueError: there is such.
    """
    raw, file = output / RAW, output / f"{name}.yaml"
    if _is_ours(raw / RECORD):
        if file.exists() and read_data_file(file).kind != kind:
            raise UserError(
                f"{file}: is of another kind of data set. Give another --name or --output, or "
                "remove that folder."
            )
        return
    if file.exists() or (raw.exists() and any(raw.iterdir())):
        raise UserError(
            f"{file if file.exists() else raw}: no import wrote it. Give another --name or "
            "--output, or move it away."
        )


def _is_ours(record: Path) -> bool:
    try:
        return read_object(record).get("format") == RECORD_FORMAT
    except (OSError, ValueError):
        return False


def _record(plan: ImportPlan, drawing: Drawing, losses: Mapping[str, Losses]) -> dict:
    return {
        "format": RECORD_FORMAT,
        "from": plan.format,
        "overlap": drawing.overlap,
        "crowds": plan.crowds,
        "polygons": plan.polygons,
        "rest": plan.rest,
        "split": plan.split and {"train": plan.split, "seed": plan.seed, "by": plan.group_by},
        "things": drawing.kinds.things,
        "stuff": drawing.kinds.stuff,
        "ignore": drawing.kinds.ignore,
        "losses": {split: lost.as_json() for split, lost in losses.items()},
    }


def _tell_kinds(kinds: Kinds, found: Mapping[str, ClassCount], plan: ImportPlan) -> None:
    if plan.semantic:
        logger.info(f"Classes: {', '.join(kinds.classes)}")
    else:
        source = (
            "--things"
            if plan.kinds is not None
            else "the annotations; --things can say it otherwise"
        )
        logger.info(f"Things, by {source}: {', '.join(kinds.things)}")
        logger.info(f"Stuff: {', '.join(kinds.stuff) or 'none'}")
    if kinds.ignore:
        logger.info(f"Void: {', '.join(kinds.ignore)}")
    absent = [name for name in kinds.classes if name not in found and name != plan.rest]
    if absent:
        logger.warning(f"No annotation has {first_few(absent)}.")


def _tell_losses(split: str, num_images: int, losses: Losses, drawing: Drawing) -> None:
    """Log what of the annotations is not in the maps; the record has it in full."""
    logger.info(
        f"{split}: {num_images:,} images, {losses.segments:,} segments; "
        f"{losses.unlabelled / losses.pixels:.1%} of the pixels have none and are "
        f"{drawing.rest or 'void'}."
    )
    if losses.crowds.total():
        shown = [
            f"{name} ({n} of {losses.things[name]})"
            for name, n in sorted(losses.crowds.items())
            if n
        ]
        logger.warning(
            f"{split}: {losses.crowds.total():,} of {losses.things.total():,} things are crowds, "
            f"which are not trained on: {', '.join(shown)}"
        )
    elif not drawing.semantic:
        logger.info(f"{split}: none of {losses.things.total():,} things is a crowd.")
    if losses.cut:
        logger.info(
            f"{split}: {losses.cut:,} segments are partly under others (--overlap "
            f"{drawing.overlap}), with {losses.covered:,} pixels."
        )
    for counts, what in (
        (losses.hidden, "are wholly under others and left out"),
        (losses.empty, "have no pixel and are left out"),
    ):
        if counts:
            classes = [f"{name} ({times})" for name, times in sorted(counts.items())]
            logger.warning(
                f"{split}: {sum(counts.values()):,} segments {what}: {first_few(classes)}"
            )
