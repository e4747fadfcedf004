"""Cityscapes and ADE20K as panoptic data sets, from the JSON and PNGs that their tools write.

- Cityscapes: ``cityscapesscripts.preparation.createPanopticImgs`` writes ``gtFine/
  cityscapes_panoptic_<split>`` and its JSON, with Cityscapes' own label ids as category ids. The
  JSON's file names of images are of no file; images are found by their ids.
- ADE20K: ``prepare_ade20k_pan_seg.py`` of Mask2Former writes ``ADEChallengeData2016/
  ade20k_panoptic_<split>`` and its JSON, with ids 0..149, 100 of them things. It draws stuff first
  and then the things over it, so that areas and boxes of stuff are those of before, and a segment
  may be hidden; here the PNG alone counts.
"""

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ocr_panoptic.data.data_file import PanopticSplit, datasets_root
from ocr_panoptic.data.faults import raise_if_any
from ocr_panoptic.data.panoptic.annotations import PanopticJson
from ocr_panoptic.data.panoptic.categories import Category
from ocr_panoptic.data.panoptic.source import PanopticSource
from ocr_panoptic.data.register import register
from ocr_panoptic.errors import MissingFileError

from .tables import ADE20K_CLASSES, cityscapes_categories

logger = logging.getLogger(__name__)

CITYSCAPES_ID = "<city>_<sequence>_<frame>"  # of an image
CITYSCAPES_SUFFIX = "_leftImg8bit.png"


@dataclass(frozen=True)
class PanopticRelease:
    """
    Attributes:
        split: relative to Detectron2's folder of data sets.
        num_images: in the release. Another number is warned of.
        adapt: see :class:`.PanopticSource`.
        hint: how the JSON is made.
    """

    split: PanopticSplit
    num_images: int
    adapt: Callable[[PanopticJson], PanopticJson]
    hint: str


def cityscapes_images(content: PanopticJson) -> PanopticJson:
    """Images by their ids, ``<city>_<sequence>_<frame>``.

    Raises:
        DataFaults: other ids, or the categories are not Cityscapes'.
    """
    _raise_if_other(content, _other_than_cityscapes(content.categories))
    raise_if_any(
        [
            f"{content.path}: image id {image.id!r} is not of the form {CITYSCAPES_ID}."
            for image in content.images
            if not re.fullmatch(r"[A-Za-z-]+_\d+_\d+", str(image.id), re.ASCII)
        ]
    )
    images = [
        replace(image, file_name=f"{image.id.partition('_')[0]}/{image.id}{CITYSCAPES_SUFFIX}")
        for image in content.images
    ]
    return replace(content, images=images)


def ade20k_segments(content: PanopticJson) -> PanopticJson:
    """Segments without the JSON's areas and boxes, and the name "window " without its space.

    Raises:
        DataFaults: the categories are not ADE20K's.
    """
    _raise_if_other(content, _other_than_ade20k(content.categories))
    content = without_areas(content)
    categories = [replace(c, name=c.name.strip()) for c in content.categories]
    return replace(content, categories=categories)


def without_areas(content: PanopticJson) -> PanopticJson:
    """Segments without the JSON's areas and boxes: the PNG alone counts."""
    images = [
        replace(
            image,
            segments=[
                {key: value for key, value in segment.items() if key not in ("area", "bbox")}
                for segment in image.segments
            ],
        )
        for image in content.images
    ]
    return replace(content, images=images)


def _raise_if_other(content: PanopticJson, fault: str) -> None:
    raise_if_any([f"{content.path}: {fault}"] if fault else [])


def _other_than_cityscapes(categories: list[Category]) -> str:
    expected = {c.id: (c.name, c.isthing) for c in cityscapes_categories()}
    if {c.id: (c.name, c.isthing) for c in categories} == expected:
        return ""
    return (
        "the categories are not Cityscapes' 19 by their label ids (7 road ... 33 bicycle). Was it "
        "written with --use-train-id?"
    )


def _other_than_ade20k(categories: list[Category]) -> str:
    names = [category.name.strip() for category in categories]
    things = sum(category.isthing for category in categories)
    if [c.id for c in categories] == list(range(150)) and names == list(ADE20K_CLASSES):
        return "" if things == 100 else f"{things} categories are things; ADE20K has 100."
    return "the categories are not ADE20K's 150 (0 wall ... 149 flag)."


def _split(images: str, panoptic: str) -> PanopticSplit:
    return PanopticSplit(Path(images), Path(f"{panoptic}.json"), Path(panoptic))


def _releases() -> dict[str, PanopticRelease]:
    found = {}
    for split, folder, city_images, ade_images in (
        ("train", "training", 2975, 20210),
        ("val", "validation", 500, 2000),
    ):
        city, ade = "cityscapes", "ADEChallengeData2016"
        found[f"cityscapes_panoptic_{split}"] = PanopticRelease(
            _split(f"{city}/leftImg8bit/{split}", f"{city}/gtFine/cityscapes_panoptic_{split}"),
            city_images,
            cityscapes_images,
            "Run python -m cityscapesscripts.preparation.createPanopticImgs --set-names train val "
            "--dataset-folder $DETECTRON2_DATASETS/cityscapes/gtFine.",
        )
        found[f"ade20k_panoptic_{split}"] = PanopticRelease(
            _split(f"{ade}/images/{folder}", f"{ade}/ade20k_panoptic_{split}"),
            ade_images,
            ade20k_segments,
            "Run Mask2Former's datasets/prepare_ade20k_pan_seg.py.",
        )
    return found


PANOPTIC_RELEASES = _releases()


def register_panoptic_releases(
    wanted: Iterable[str] | None = None, root: Path | str | None = None
) -> None:
    """Register those of ``PANOPTIC_RELEASES`` that are wanted, by default all; their JSONs are
    read.

    Args:
        root: by default ``$DETECTRON2_DATASETS``, or ``datasets``.

    Raises:
        FileNotFoundError: a JSON, or a folder of one, is missing.
        DataFaults: as :func:`.read_panoptic_json`, or the categories are not the release's.
    """
    root = datasets_root() if root is None else Path(root)
    for name in PANOPTIC_RELEASES if wanted is None else wanted:
        if name not in PANOPTIC_RELEASES:
            continue
        release = PANOPTIC_RELEASES[name]
        split = PanopticSplit(*(root / path for path in vars(release.split).values()))
        if not split.annotations.is_file():
            raise MissingFileError(f"{split.annotations}: not found. {release.hint}")
        hides = release.adapt is ade20k_segments
        source = PanopticSource(name, split, adapt=release.adapt, hides=hides)
        register(name, root, source, source.metadata(), vars(split).values())
        if (found := len(source.index())) != release.num_images:
            logger.warning(
                f"{split.annotations}: has {found} images, the release has {release.num_images}. "
                "Is it unpacked wholly?"
            )
