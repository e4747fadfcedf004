"""Warnings about a config that grossly contradicts its data."""

from collections.abc import Iterator

from detectron2.config import CfgNode

from ocr_panoptic.config.keys import PANOPTIC
from ocr_panoptic.data.faults import first_few

from .fingerprint import Fingerprint
from .rules import REGIONS

REACH = 0.5  # an object is found from an anchor of at most twice its side


def contradictions(cfg: CfgNode, data: Fingerprint) -> Iterator[str]:
    """Yield a warning for each gross contradiction, with the fix."""
    inputs = cfg.INPUT
    size = inputs.MIN_SIZE_TEST or data.short[1]
    plan = "`ocr-panoptic plan --data FILE` proposes values."
    if PANOPTIC.holds(cfg) and data.sides:
        smallest = min(side for level in cfg.MODEL.ANCHOR_GENERATOR.SIZES for side in level)
        quarter, median = data.sides[1] * size, data.sides[2] * size
        if quarter < REACH * smallest:
            yield (
                f"in images whose shorter side has {size} pixels, a quarter of the objects have a "
                f"side of at most {quarter:.1f} (median: {median:.1f}), but the smallest anchor "
                f"has {smallest}. Raise INPUT.MIN_SIZE_TRAIN and INPUT.MIN_SIZE_TEST. {plan}"
            )
        regions = cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE
        positive = regions * cfg.MODEL.ROI_HEADS.POSITIVE_FRACTION
        if regions < REGIONS and data.objects[0] > positive:
            yield (
                f"half of the images have {data.objects[0]} objects or more, but "
                f"MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE {regions} shows only {positive:.0f} to the "
                f"mask head in a step. Raise it to {REGIONS}. {plan}"
            )
    if inputs.CROP.ENABLED and inputs.CROP.TYPE == "absolute":
        train = inputs.MIN_SIZE_TRAIN[len(inputs.MIN_SIZE_TRAIN) // 2] or data.short[1]
        crop = min(inputs.CROP.SIZE)
        wide = [c.name for c in data.classes if (c.width or 0) * train > crop]
        if 2 * len(wide) >= len(data.classes):
            yield (
                f"these classes are wider, on average, than a crop of {crop} pixels: "
                f"{first_few(wide)}. Enlarge INPUT.CROP.SIZE, or lower INPUT.MIN_SIZE_TRAIN from "
                f"{train}. {plan}"
            )
