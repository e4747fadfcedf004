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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ocr_panoptic.data.data_file import (
    PanopticSplit,
    SemanticSplit,
    check_new_name,
    read_data_file,
    write_data_file,
)
from ocr_panoptic.data.faults import first_few, gathering, raise_if_any
from ocr_panoptic.data.panoptic.annotations import Category
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import write_panoptic_json
from ocr_panoptic.formats.files import check_output_folder, locked, printable, write_json

from .annotated_image import AnnotatedImage
from .drawing import IMAGES, Drawing, DrawnImages, link_images, png_name, remove_others
from .formats import ANNOTATION_FORMATS
from .import_plan import (
    AnnotationSource,
    ImportPlan,
    check_plan,
    classes_found,
    read_sources,
    with_own_splits,
)
from .kinds import ClassCount, Kinds, check_classes, resolve_kinds
from .painting import Losses
from .reading import read_object

logger = logging.getLogger(__name__)

RAW = "raw"
IMPORT_RECORD, RECORD_FORMAT = "import.json", "ocr_panoptic.import"


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
        workers: processes, see :func:`.imap_with_progress`.

    Returns:
        the data file.

    Raises:
        FileNotFoundError, DataFaults: missing or broken files, annotations that contradict
            themselves or their images; all are named. Then nothing has been written.
        ValueError: options that do not fit together; a name that is taken; an ``output`` that
            cannot be written, into which another process imports, or that holds other data.
    """
    check_plan(sources, plan)
    sources = with_own_splits(sources, plan)
    check_new_name(name, ("train", "val") if plan.split is not None else sources, output)
    _check_free(output, name, "semantic" if plan.semantic else "panoptic")
    source_format = ANNOTATION_FORMATS[plan.format]
    with _importing(output) as folder:
        images, found = read_sources(sources, plan, folder)
        kinds = resolve_kinds(found, plan.kinds, source_format.kinds, plan.rest, plan.semantic)
        check_classes(kinds, plan.semantic)
        overlap = plan.overlap or source_format.overlap or "order"
        drawing = Drawing(kinds, overlap, plan.rest, plan.semantic)
        drawn: dict[str, DrawnImages] = {}
        faults: list[str] = []
        for split, listed in images.items():
            with gathering(faults):
                drawn[split] = drawing.draw_all(listed, folder / split, workers)
        if not plan.semantic:
            faults += [
                f"{split}: no image shows any class, all pixels are void. "
                + classes_found(found, plan)
                for split, found_in in drawn.items()
                if set(found_in.segments) == {"[]"}
            ]
        raise_if_any(faults)
        tell_kinds(kinds, found, plan)
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
    drawn: Mapping[str, DrawnImages],
    folder: Path,
    drawing: Drawing,
    plan: ImportPlan,
) -> Path:
    raw, file = output / RAW, output / f"{name}.yaml"
    losses = {split: parts.losses for split, parts in drawn.items()}
    file.unlink(missing_ok=True)  # until its files are complete
    # The record comes first: it says whose the files beside it are.
    write_json(raw / IMPORT_RECORD, import_record(plan, drawing, losses), indent=1)
    wanted = {raw / IMPORT_RECORD}
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
        tell_losses(split, len(listed), losses[split], drawing)
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


def _check_free(output: Path, name: str, kind: str) -> None:
    """Refuse to write over what no earlier import has written.

    Raises:
        ValueError: there is such.
    """
    raw, file = output / RAW, output / f"{name}.yaml"
    if _is_ours(raw / IMPORT_RECORD):
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


def import_record(plan: ImportPlan, drawing: Drawing, losses: Mapping[str, Losses]) -> dict:
    """Return the content of import.json; ``losses`` by split."""
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


def tell_kinds(kinds: Kinds, found: Mapping[str, ClassCount], plan: ImportPlan) -> None:
    """Log what the classes are."""
    if plan.semantic:
        logger.info(f"Classes: {', '.join(kinds.classes)}")
    else:
        source = "the annotations; --things can say it otherwise"
        source = source if plan.kinds is None else "--things"
        logger.info(f"Things, by {source}: {', '.join(kinds.things)}")
        logger.info(f"Stuff: {', '.join(kinds.stuff) or 'none'}")
    if kinds.ignore:
        logger.info(f"Void: {', '.join(kinds.ignore)}")
    absent = [name for name in kinds.classes if name not in found and name != plan.rest]
    if absent:
        logger.warning(f"No annotation has {first_few(absent)}.")


def tell_losses(split: str, num_images: int, losses: Losses, drawing: Drawing) -> None:
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
