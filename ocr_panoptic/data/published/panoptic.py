"""Cityscapes and ADE20K as panoptic data sets, from what one downloads.

Neither has a panoptic JSON: segments and classes are read from the PNGs, see :mod:`.segment_pngs`.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ocr_panoptic.data.data_file import PanopticSplit
from ocr_panoptic.data.faults import raise_if_any
from ocr_panoptic.data.fingerprint import digest, file_state
from ocr_panoptic.data.index import Index
from ocr_panoptic.data.panoptic.annotations import PanopticImage, PanopticJson
from ocr_panoptic.data.panoptic.categories import Category, panoptic_metadata
from ocr_panoptic.data.panoptic.source import PanopticSource
from ocr_panoptic.data.parallel import imap_with_progress
from ocr_panoptic.data.semantic.records import LabelledFolder
from ocr_panoptic.formats.segment_runs import SegmentRuns

from .segment_pngs import ade20k_kind, cityscapes_kind, read_ade20k_ids, read_cityscapes_ids
from .tables import ade20k_categories, cityscapes_categories

logger = logging.getLogger(__name__)

CITYSCAPES_SUFFIX = "_leftImg8bit.png"


@dataclass(frozen=True)
class PanopticRelease:
    """
    Attributes:
        split: relative to Detectron2's folder of data sets.
        num_images: in the release. Another number is warned of.
        image_suffix, png_suffix: ends of the file names; what is before is the image's id.
        categories: of segments.
        kind_of: segment id -> category and iscrowd.
        read_segments: see :class:`.PanopticSource`.
        hint: what to do where a folder is missing.
    """

    split: PanopticSplit
    num_images: int
    image_suffix: str
    png_suffix: str
    categories: list[Category]
    kind_of: Callable[[int], tuple[int, int]]
    read_segments: Callable[[str | os.PathLike], np.ndarray]
    hint: str


def _releases() -> dict[str, PanopticRelease]:
    found = {}
    for split, folder, city_images, ade_images in (
        ("train", "training", 2975, 20210),
        ("val", "validation", 500, 2000),
    ):
        city, ade = Path("cityscapes"), Path("ADEChallengeData2016")
        labels = city / "gtFine" / split
        found[f"cityscapes_panoptic_{split}"] = PanopticRelease(
            PanopticSplit(city / "leftImg8bit" / split, labels, labels),
            city_images,
            CITYSCAPES_SUFFIX,
            "_gtFine_instanceIds.png",
            cityscapes_categories(),
            cityscapes_kind,
            read_cityscapes_ids,
            "Unpack leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip of Cityscapes into "
            "cityscapes/.",
        )
        parts = (ade / part / folder for part in ("images", "annotations", "annotations_instance"))
        found[f"ade20k_panoptic_{split}"] = PanopticRelease(
            PanopticSplit(*parts),
            ade_images,
            ".jpg",
            ".png",
            ade20k_categories(),
            ade20k_kind,
            read_ade20k_ids,
            "Unpack ADEChallengeData2016.zip, and annotations_instance.tar into it.",
        )
    return found


PANOPTIC_RELEASES = _releases()


@dataclass(frozen=True)
class ReleaseSource(PanopticSource):
    """The records of a release, whose segments are read from its PNGs once, for the index."""

    @property
    def release(self) -> PanopticRelease:
        return PANOPTIC_RELEASES[self.name]

    def state(self) -> str:
        """Return a digest of the names, and of sizes and times of the PNGs."""
        names = ({"file_name": image, "png_name": png} for image, png in self._names())
        return digest([[*self.files(n), *map(file_state, self.files(n)[1:])] for n in names])

    def files(self, record: dict) -> tuple[str, ...]:
        labels = os.path.join(self.split.annotations, record["png_name"])
        return *super().files(record), labels

    def content(self) -> PanopticJson:
        names = self._names()
        if len(names) != self.release.num_images:
            logger.warning(
                f"{self.split.images}: has {len(names)} images, the release has "
                f"{self.release.num_images}. Is it unpacked wholly?"
            )
        found = list(imap_with_progress(self._image, names, f"read {self.name}"))
        raise_if_any([fault for fault in found if isinstance(fault, str)])
        return PanopticJson(self.split.segments, self.release.categories, found)

    def categories(self, index: Index) -> list[Category]:
        return self.release.categories

    def metadata(self) -> dict:
        return {**panoptic_metadata(self.release.categories), **self.file_metadata()}

    def _names(self) -> list[tuple[str, str]]:
        """Return the names of images and PNGs, relative to their folders."""
        release, (images, _, segments) = self.release, vars(self.split).values()
        folder = LabelledFolder(
            images, segments, (release.image_suffix,), release.png_suffix, hint=release.hint
        )
        return [
            (str(image.relative_to(images)), str(png.relative_to(segments)))
            for image, png in folder.pairs()
        ]

    def _image(self, names: tuple[str, str]) -> PanopticImage | str:
        """The segments of a PNG, or its fault."""
        image, png = names
        try:
            runs = SegmentRuns(self.read_segments(self.split.segments / png))
        except (FileNotFoundError, ValueError) as error:
            return str(error)
        kinds = {number: self.release.kind_of(number) for number in runs.ids.tolist() if number}
        return PanopticImage(
            id=os.path.basename(image).removesuffix(self.release.image_suffix),
            file_name=image,
            png_name=png,
            height=runs.size[0],
            width=runs.size[1],
            segments=[
                {"id": number, "category_id": category, "iscrowd": iscrowd}
                for number, (category, iscrowd) in kinds.items()
            ],
        )


def release_source(name: str, root: Path) -> ReleaseSource:
    """Return the records of one of ``PANOPTIC_RELEASES`` below a folder."""
    release = PANOPTIC_RELEASES[name]
    split = PanopticSplit(*(root / path for path in vars(release.split).values()))
    return ReleaseSource(name, split, read_segments=release.read_segments)
