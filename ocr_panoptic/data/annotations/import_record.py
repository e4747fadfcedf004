"""The record of an import, and what it says of classes and losses."""

import logging
from collections.abc import Mapping

from ocr_panoptic.data.faults import first_few

from .drawing import Drawing
from .import_plan import ImportPlan
from .kinds import ClassCount, Kinds
from .painting import Losses

logger = logging.getLogger(__name__)

RECORD_FORMAT = "ocr_panoptic.import"


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
