"""
Import of annotations, in any format, as a panoptic or a semantic data set.

An import writes below the folder of the data set:

    <name>.yaml                 the data file, written last
    raw/import.json             options, classes and losses; it marks raw/ as written by an import
    raw/<split>/images/         links to the images
    raw/<split>/panoptic/       panoptic PNGs, and
    raw/<split>/panoptic.json   the panoptic JSON; or
    raw/<split>/semantic/       label PNGs
"""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ocr_panoptic.data.data_file import (
    PanopticSplit,
    SemanticSplit,
    check_new_name,
    write_data_file,
)
from ocr_panoptic.data.faults import first_few, raise_if_any
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import write_json

from .drawing import IMAGES, Drawing, draw_split
from .formats import ANNOTATION_FORMATS
from .import_plan import AnnotationSource, ImportPlan, check_plan, read_sources, with_own_splits
from .kinds import ClassCount, Kinds, check_classes, resolve_kinds
from .painting import Counts

logger = logging.getLogger(__name__)

IMPORT_RECORD, RECORD_FORMAT = "import.json", "ocr_panoptic.import"


def import_annotations(
    name: str,
    sources: Mapping[str, AnnotationSource],
    plan: ImportPlan,
    output: Path,
    workers: int | None = None,
) -> Path:
    """
    Import annotations as the files listed in this module's docstring; return the data file.

    Equal annotations give equal files. After an error nothing is changed.

    Args:
        name: name of the data set; its splits are registered as ``<name>_<split>``.
        sources: "train" and perhaps "val"; if there is only "train", its own splits are used.
        output: folder of the data set.
        workers: number of processes, see :func:`.imap_with_progress`.
    """
    check_plan(sources, plan)
    sources = with_own_splits(sources, plan)
    check_new_name(name, ("train", "val") if plan.split is not None else sources, output)
    raw, file = output / "raw", output / f"{name}.yaml"
    is_ours = (raw / IMPORT_RECORD).is_file()
    if not is_ours and (file.exists() or (raw.exists() and any(raw.iterdir()))):
        raise UserError(
            f"{file if file.exists() else raw}: no import wrote it. Give another --name or "
            "--output, or move it away."
        )
    images, found, missing = read_sources(sources, plan, workers)
    source_format = ANNOTATION_FORMATS[plan.format]
    kinds = resolve_kinds(found, plan.kinds, source_format.kinds, plan.rest, plan.semantic)
    check_classes(kinds, plan.semantic)
    drawing = Drawing(kinds, source_format.smaller_on_top, plan.rest, plan.semantic)
    with _new_folder(output) as new:
        counts = {
            split: draw_split(listed, new / split, drawing, workers)
            for split, listed in images.items()
        }
        raise_if_any(
            [
                f"{split}: no image shows any class, all pixels are void. Found: "
                f"{', '.join(found) or 'no segment'}."
                for split, numbers in counts.items()
                if numbers["segments"] == numbers.get("hidden", Counter())
                and not (plan.semantic or plan.rest)
            ]
        )
        record = {**_record(plan, kinds, counts), "missing": missing}
        write_json(new / IMPORT_RECORD, record, indent=1)
        file.unlink(missing_ok=True)  # no data file may exist while its folder is replaced
        shutil.rmtree(raw, ignore_errors=True)
        os.replace(new, raw)
    log_kinds(kinds, found, plan)
    for split, number in missing.items():
        logger.warning(f"{split}: {number} images are missing and left out.")
    for split, listed in images.items():
        log_losses(split, len(listed), counts[split], plan)
    if plan.semantic:
        classes = [{"name": n, "color": kinds.color(n)} for n in kinds.classes]
        folders = {s: SemanticSplit(raw / s / IMAGES, raw / s / drawing.folder) for s in images}
        write_data_file(file, name, folders, classes=classes)
    else:
        splits = {
            s: PanopticSplit(raw / s / IMAGES, raw / s / "panoptic.json", raw / s / drawing.folder)
            for s in images
        }
        write_data_file(file, name, splits)
    return file


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """Yield a new folder below the output; remove it at the end unless it was moved."""
    output.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=".import-", dir=output) as temporary:
            yield Path(temporary, "raw")
    finally:
        with suppress(OSError):  # not empty
            output.rmdir()


def _record(plan: ImportPlan, kinds: Kinds, counts: Mapping[str, Counts]) -> dict:
    """Return the content of import.json; ``counts`` has a value for each split."""
    options = {key: getattr(plan, key) for key in ("crowds", "polygons", "rest", "split")}
    classes = {key: getattr(kinds, key) for key in ("things", "stuff", "ignore")}
    return {"format": RECORD_FORMAT, "from": plan.format, **options, **classes, "counts": counts}


def log_kinds(kinds: Kinds, found: Mapping[str, ClassCount], plan: ImportPlan) -> None:
    """Log the kinds of the classes."""
    if plan.semantic:
        logger.info(f"Classes: {', '.join(kinds.classes)}")
    else:
        source = "the annotations; --things can change it"
        source = source if plan.kinds is None else "--things"
        logger.info(f"Things, according to {source}: {', '.join(kinds.things)}")
        logger.info(f"Stuff: {', '.join(kinds.stuff) or 'none'}")
    if kinds.ignore:
        logger.info(f"Void: {', '.join(kinds.ignore)}")
    absent = [name for name in kinds.classes if name not in found and name != plan.rest]
    if absent:
        logger.warning(f"No annotation has {first_few(absent)}.")
    rest = found.get(plan.rest or "")
    if rest and plan.kinds is None and rest.kind == "thing":
        logger.warning(f"--rest {plan.rest}: segments of class {plan.rest} become stuff, too.")
    if not (kinds.stuff or plan.semantic):
        logger.warning(
            "There is no class of stuff: pixels outside all objects are void. They are not trained "
            "on, and false positives there are not counted. If they are background, give --rest "
            "background."
        )


def log_losses(split: str, num_images: int, counts: Counts, plan: ImportPlan) -> None:
    """Log the annotations that the maps do not show; import.json has the full counts."""
    pixels, things, crowds = counts["pixels"], counts["things"], counts["crowds"]
    logger.info(
        f"{split}: {num_images:,} images, {counts['segments'].total():,} segments; "
        f"{pixels['unlabelled'] / pixels['all']:.1%} of the pixels have no segment and are "
        f"{plan.rest or 'void'}."
    )
    if crowds:
        shown = [f"{name} ({n} of {things[name]})" for name, n in sorted(crowds.items())]
        logger.warning(
            f"{split}: {crowds.total():,} of {things.total():,} things are crowds, which are not "
            f"trained on: {', '.join(shown)}"
        )
    elif not plan.semantic:
        logger.info(f"{split}: none of {things.total():,} things is a crowd.")
    if counts["void"]:
        logger.info(f"{split}: {counts['void'].total():,} segments are void by their class.")
    if counts["cut"]:
        logger.info(f"{split}: {counts['cut'].total():,} segments are partly under others.")
    for key, loss in (
        ("hidden", "are completely under others and left out"),
        ("empty", "have no pixel and are left out"),
        ("boxes", "are boxes, drawn as filled rectangles; objects seldom fill their box"),
        ("left out", "have no area and are left out"),
    ):
        if counts[key]:
            classes = [f"{name} ({times})" for name, times in sorted(counts[key].items())]
            noun = "shapes" if key == "left out" else "segments"
            logger.warning(f"{split}: {counts[key].total():,} {noun} {loss}: {first_few(classes)}")
