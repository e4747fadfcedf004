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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ocr_panoptic.data.faults import raise_if_any
from ocr_panoptic.data.panoptic.annotations import PanopticJson
from ocr_panoptic.data.panoptic.categories import Category
from ocr_panoptic.data.panoptic.check import read_split
from ocr_panoptic.data.panoptic.manifest import RawSplit
from ocr_panoptic.data.panoptic.prepare import prepare_panoptic

from .tables import ADE20K_CLASSES, cityscapes_categories

logger = logging.getLogger(__name__)

CITYSCAPES_ID = "<city>_<sequence>_<frame>"  # of an image
CITYSCAPES_SUFFIX = "_leftImg8bit.png"


@dataclass(frozen=True)
class PanopticRelease:
    """
    Attributes:
        name: data sets are registered as ``<name>_<split>``.
        splits: split -> its folders and JSON, relative to Detectron2's folder of data sets.
        num_images: of each split, in the release. Another number is warned of.
        adapt: from the JSON as it was written to what is true of the files.
        category_fault: what of the categories is not the release's, "" for nothing.
        hint: how the JSON is made.
    """

    name: str
    splits: dict[str, RawSplit]
    num_images: dict[str, int]
    adapt: Callable[[PanopticJson], PanopticJson]
    category_fault: Callable[[list[Category]], str]
    hint: str


def cityscapes_images(content: PanopticJson) -> PanopticJson:
    """Images by their ids, ``<city>_<sequence>_<frame>``.

    Raises:
        DataFaults: other ids.
    """
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
    """Segments without the JSON's areas and boxes, and the name "window " without its space."""
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
    categories = [replace(c, name=c.name.strip()) for c in content.categories]
    return replace(content, categories=categories, images=images, hides=True)


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


def _raw(images: str, panoptic: str) -> RawSplit:
    return RawSplit(Path(images), Path(f"{panoptic}.json"), Path(panoptic))


_CITY, _ADE = "cityscapes", "ADEChallengeData2016"
PANOPTIC_RELEASES = {
    "cityscapes": PanopticRelease(
        name="cityscapes_panoptic",
        splits={
            split: _raw(
                f"{_CITY}/leftImg8bit/{split}", f"{_CITY}/gtFine/cityscapes_panoptic_{split}"
            )
            for split in ("train", "val")
        },
        num_images={"train": 2975, "val": 500},
        adapt=cityscapes_images,
        category_fault=_other_than_cityscapes,
        hint="Run python -m cityscapesscripts.preparation.createPanopticImgs --set-names train val "
        "--dataset-folder $DETECTRON2_DATASETS/cityscapes/gtFine.",
    ),
    "ade20k": PanopticRelease(
        name="ade20k_panoptic",
        splits={
            split: _raw(f"{_ADE}/images/{folder}", f"{_ADE}/ade20k_panoptic_{split}")
            for split, folder in (("train", "training"), ("val", "validation"))
        },
        num_images={"train": 20210, "val": 2000},
        adapt=ade20k_segments,
        category_fault=_other_than_ade20k,
        hint="Run Mask2Former's datasets/prepare_ade20k_pan_seg.py.",
    ),
}


def prepare_panoptic_release(
    release: PanopticRelease, root: Path, workers: int | None = None
) -> Path:
    """Prepare those splits whose JSON is there, in ``root/<name>``.

    Args:
        root: Detectron2's folder of data sets.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the manifest's path.

    Raises:
        FileNotFoundError: no JSON, or a folder of one is missing.
        DataFaults: as :func:`prepare_panoptic`, or the categories are not the release's.
        ValueError: as :func:`prepare_panoptic`.
    """
    splits = {
        split: RawSplit(**{key: root / path for key, path in vars(raw).items()})
        for split, raw in release.splits.items()
    }
    found = {split: raw for split, raw in splits.items() if raw.panoptic_json.is_file()}
    if not found:
        files = " and ".join(str(raw.panoptic_json) for raw in splits.values())
        raise FileNotFoundError(f"{files}: neither found. {release.hint}")
    expected = {raw: release.num_images[split] for split, raw in splits.items()}

    def read(split: RawSplit) -> PanopticJson:
        content = read_split(split)
        if fault := release.category_fault(content.categories):
            raise_if_any([f"{split.panoptic_json}: {fault}"])
        if len(content.images) != expected[split]:
            logger.warning(
                f"{split.panoptic_json}: has {len(content.images)} images, the release has "
                f"{expected[split]}. Is it unpacked wholly?"
            )
        return release.adapt(content)

    return prepare_panoptic(release.name, found, root / release.name, workers, read=read)
