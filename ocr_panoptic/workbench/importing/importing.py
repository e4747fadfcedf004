"""
Imports annotations of any format as a panoptic or semantic data set.

An import writes these files into the folder of the data set:

    <name>.yaml                 the data file, written last
    raw/import.json             options, classes and numbers of segments and pixels
    raw/<split>/images/         links to the images
    raw/<split>/panoptic/       panoptic PNGs, and
    raw/<split>/panoptic.json   the panoptic JSON; or
    raw/<split>/semantic/       label PNGs
"""

import json
import logging
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.data_file import PanopticSplit, SemanticSplit, write_data_file
from ocr_panoptic.data.faults import first_few, raise_if_any
from ocr_panoptic.data.panoptic.annotations import Category
from ocr_panoptic.data.places import check_new_name
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.files import write_json, write_lists
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.formats.segment_runs import segment_statistics
from ocr_panoptic.progress import imap_with_progress

from .annotated_image import AnnotatedImage
from .formats import ANNOTATION_FORMATS
from .import_plan import AnnotationSource, ImportPlan, check_plan, read_sources, with_own_splits
from .kinds import ClassCount, Kinds, check_classes, resolve_kinds
from .painting import Counts, paint

logger = logging.getLogger(__name__)

IMPORT_RECORD, RECORD_FORMAT = "import.json", "ocr_panoptic.import"

# Key of Counts -> its meaning in log messages.
LOSSES = {
    "crowds": "crowd(s), which are not used for training",
    "cut": "segment(s) partly covered by others",
    "hidden": "segment(s) left out, completely covered by others",
    "empty": "segment(s) left out, without pixels",
    "boxes": "box(es), which few objects fill, drawn as filled rectangles",
    "traced": "polygon(s) through pixel centres, as OpenCV's findContours traces them; drawn along "
    "pixel edges, they lose half a pixel on each side. Give --polygons centres to draw them along "
    "the centres, or --polygons edges if the edges are right. Their classes",
    "left out": "shape(s) left out, without area",
}


def import_annotations(
    name: str,
    sources: Mapping[str, AnnotationSource],
    plan: ImportPlan,
    output: Path,
    workers: int | None = None,
) -> Path:
    """
    Import annotations as a data set in ``output``; return the path of the data file.

    The same annotations always give the same files. If the import fails, the files of an earlier
    import are kept.

    Args:
        name: name of the data set; its splits are registered as ``<name>_<split>``.
        sources: source of "train" and optionally of "val". If only "train" is given and its
            annotations define splits, these splits are imported.
        workers: number of processes; by default one per core, at most 8.
    """
    check_plan(sources, plan)
    sources = with_own_splits(sources, plan)
    check_new_name(name, ("train", "val") if plan.split is not None else sources, output)
    raw, file = output / "raw", output / f"{name}.yaml"
    is_ours = (raw / IMPORT_RECORD).is_file()
    if not is_ours and (file.exists() or (raw.exists() and any(raw.iterdir()))):
        raise UserError(
            f"{file if file.exists() else raw}: exists, but was not written by an import. Give "
            "another --name or --output, or move it away."
        )
    images, class_counts, missing = read_sources(sources, plan, workers)
    fixed_kinds = ANNOTATION_FORMATS[plan.format].kinds
    kinds = resolve_kinds(class_counts, plan.kinds, fixed_kinds, plan.rest, plan.semantic)
    check_classes(kinds, plan.semantic)
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".import-", dir=output) as temporary:
        new = Path(temporary, "raw")
        counts = {
            split: draw_split(listed, new / split, kinds, plan, workers)
            for split, listed in images.items()
        }
        if not (plan.semantic or plan.rest):
            raise_if_any(
                [
                    f"{split}: all pixels are void, because no image shows a class that is used. "
                    f"List some of these as things or stuff: {', '.join(class_counts)}."
                    for split, numbers in counts.items()
                    if numbers["segments"] == numbers.get("hidden", Counter())
                ]
            )
        options = {key: getattr(plan, key) for key in ("crowds", "polygons", "rest", "split")}
        classes = {key: getattr(kinds, key) for key in ("things", "stuff", "ignore")}
        record = {"format": RECORD_FORMAT, "from": plan.format, **options, **classes}
        write_json(new / IMPORT_RECORD, {**record, "counts": counts, "missing": missing}, indent=1)
        file.unlink(missing_ok=True)  # no data file may exist while its folder is replaced
        shutil.rmtree(raw, ignore_errors=True)
        os.replace(new, raw)
    log_kinds(kinds, class_counts, plan)
    for split, number in missing.items():
        logger.warning(f"{split}: {number} missing image(s) left out.")
    for split, listed in images.items():
        log_losses(split, len(listed), counts[split], plan)
    if plan.semantic:
        labels = {s: SemanticSplit(raw / s / "images", raw / s / "semantic") for s in images}
        entries = [{"name": n, "color": kinds.color(n)} for n in kinds.classes]
        write_data_file(file, name, labels, classes=entries)
    else:
        maps = {
            s: PanopticSplit(raw / s / "images", raw / s / "panoptic.json", raw / s / "panoptic")
            for s in images
        }
        write_data_file(file, name, maps)
    return file


def draw_split(
    images: Sequence[AnnotatedImage],
    folder: Path,
    kinds: Kinds,
    plan: ImportPlan,
    workers: int | None = None,
) -> Counts:
    """Write a split's files into ``folder``; return counts of the split's segments and pixels."""
    total: Counts = defaultdict(Counter)
    entries, annotations = [], []  # as JSON texts
    draw = partial(_draw, folder=folder, kinds=kinds, plan=plan)
    drawn = imap_with_progress(draw, images, f"import {folder.name}", workers)
    for number, (image, (segments, counts)) in enumerate(zip(images, drawn, strict=True), 1):
        for key, numbers in counts.items():
            total[key].update(numbers)
        size = {"height": image.height, "width": image.width}
        entry = {"id": number, "file_name": image.name, **size}
        annotation = {"image_id": number, "file_name": _png_name(image), "segments_info": segments}
        entries.append(json.dumps(entry))
        annotations.append(json.dumps(annotation))
        link = folder / "images" / image.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.abspath(image.file))
    if not plan.semantic:
        categories = [
            Category(place, name, name in kinds.things, kinds.color(name)).as_json()
            for place, name in enumerate(kinds.classes, 1)
        ]
        write_lists(
            folder / "panoptic.json", images=entries, annotations=annotations, categories=categories
        )
    return total


def _png_name(image: AnnotatedImage) -> str:
    return str(PurePosixPath(image.name).with_suffix(".png"))


def _draw(
    image: AnnotatedImage, folder: Path, kinds: Kinds, plan: ImportPlan
) -> tuple[list[dict], Counts]:
    """Write an image's PNG; return ``segments_info`` ([] for a label PNG) and segment counts."""
    painted = paint(image, kinds, ANNOTATION_FORMATS[plan.format].smaller_on_top, plan.rest)
    if plan.semantic:
        write_label_png(folder / "semantic" / _png_name(image), painted.semantic(VOID_LABEL))
        return [], painted.counts
    write_panoptic_png(folder / "panoptic" / _png_name(image), painted.ids)
    statistics = segment_statistics(painted.ids)
    segments = [
        {
            "id": number,
            "category_id": label + 1,
            "iscrowd": int(number in painted.crowds),
            **statistics[number]._asdict(),
        }
        for number, label in painted.labels.items()
    ]
    return segments, painted.counts


def log_kinds(kinds: Kinds, class_counts: Mapping[str, ClassCount], plan: ImportPlan) -> None:
    for kind, names in (("Things", kinds.things), ("Stuff", kinds.stuff), ("Void", kinds.ignore)):
        logger.info(f"{kind}: {', '.join(names) or 'none'}")
    folded = Counter(name.casefold() for name in class_counts)
    if alike := [name for name in class_counts if folded[name.casefold()] > 1]:
        logger.warning(f"Some class names differ only in case: {first_few(alike)}.")
    absent = [name for name in kinds.classes if name not in class_counts and name != plan.rest]
    if absent:
        logger.warning(f"These classes have no annotations: {first_few(absent)}.")
    if not (kinds.stuff or plan.semantic):
        logger.warning(
            "There are no stuff classes, so pixels outside objects are void and are ignored in "
            "training and evaluation. If they are background, give --rest background."
        )


def log_losses(split: str, num_images: int, counts: Counts, plan: ImportPlan) -> None:
    """Log the size of a split, and how many segments are lost, cut or approximated in its PNGs."""
    pixels = counts["pixels"]
    logger.info(
        f"{split}: {num_images:,} images, {counts['segments'].total():,} segments; "
        f"{pixels['unlabelled'] / pixels['all']:.1%} of the pixels have no segment and are "
        f"{plan.rest or 'void'}."
    )
    for key, meaning in LOSSES.items():
        if counts[key]:
            names = [f"{name} ({times})" for name, times in sorted(counts[key].items())]
            level = logging.INFO if key == "cut" else logging.WARNING
            number = f"{counts[key].total():,}"
            logger.log(level, f"{split}: {number} {meaning}: {first_few(names)}")
