"""
Cityscapes and ADE20K as panoptic data sets, and the test sets of Cityscapes and COCO.

Cityscapes and ADE20K have no panoptic JSON; segments and classes are decoded from their PNGs:

- Cityscapes: in ``*_instanceIds.png``, the pixels of an object have the value label id * 1000 +
  object number; all other pixels have their label id. If this is the label id of a thing class, the
  pixels are a crowd: objects without separate outlines. Classes that are not evaluated are void, as
  in ``cityscapesscripts.preparation.createPanopticImgs``.
- ADE20K: in ``annotations_instance``, red is the category of an object (1..100) and green is the
  number of the object in the image. Pixels without an object have a stuff label if ``annotations``
  gives one of the 50 stuff labels, and are void otherwise. Mask2Former's
  ``prepare_ade20k_pan_seg.py`` gives the same segments, but also lists stuff without pixels.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from detectron2.data.datasets.builtin_meta import _get_builtin_metadata

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.data_check import remembered
from ocr_panoptic.data.data_file import PanopticSplit
from ocr_panoptic.data.faults import first_few, raise_if_any
from ocr_panoptic.data.panoptic.annotations import (
    Category,
    PanopticImage,
    PanopticJson,
    file_name_faults,
    panoptic_metadata,
)
from ocr_panoptic.data.panoptic.source import PanopticSource
from ocr_panoptic.data.semantic.records import LabelledFolder
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import read_json
from ocr_panoptic.formats.labels import read_label_image, read_labels
from ocr_panoptic.formats.pictures import load_labels
from ocr_panoptic.formats.segment_runs import SegmentRuns
from ocr_panoptic.progress import imap_with_progress

from .tables import (
    ADE20K_STUFF,
    CITYSCAPES_IGNORED,
    CITYSCAPES_OBJECTS,
    ade20k_categories,
    cityscapes_categories,
)

logger = logging.getLogger(__name__)

CITYSCAPES_SUFFIX = "_leftImg8bit.png"
CITYSCAPES_THING_IDS = {category.id for category in cityscapes_categories() if category.isthing}
ADE20K_OBJECTS = 256  # an object has the segment id label * 256 + number
ADE20K_THINGS = [label for label in range(1, 151) if label not in ADE20K_STUFF]
ADE20K_IDS = {label: label if label in ADE20K_STUFF else 0 for label in range(151)}


def _cityscapes_ids() -> np.ndarray:
    """Return a table from 16-bit values to segment ids: 0 for void, -1 for an unknown label."""
    table = np.full(1 << 16, -1, np.int32)
    for label in (*CITYSCAPES_IGNORED, *(c.id for c in cityscapes_categories())):
        objects = range(label * CITYSCAPES_OBJECTS, (label + 1) * CITYSCAPES_OBJECTS)
        values = [label, *(objects if label else ())]
        table[values] = 0 if label in CITYSCAPES_IGNORED else values
    return table


CITYSCAPES_IDS = _cityscapes_ids()


def read_cityscapes_ids(path: str | os.PathLike) -> np.ndarray:
    """Read the segment ids of ``*_instanceIds.png``, int32 [H, W]; 0 is void or not evaluated."""
    values = read_label_image(path)
    ids = CITYSCAPES_IDS[values]
    if ids.min() < 0:
        raise UserError(
            f"{path}: found {first_few(list(map(str, np.unique(values[ids < 0]))))}, expected "
            "Cityscapes label ids. Are these train ids, or ids of other classes?"
        )
    return ids


def cityscapes_kind(number: int) -> tuple[int, int]:
    """Return the category id and the iscrowd flag of a Cityscapes segment, given its id."""
    if number >= CITYSCAPES_OBJECTS:
        return number // CITYSCAPES_OBJECTS, 0
    return number, int(number in CITYSCAPES_THING_IDS)


def read_ade20k_ids(path: str | os.PathLike) -> np.ndarray:
    """
    Read segment ids from a PNG in ``annotations_instance`` and the matching label PNG.

    Returns:
        int32 [H, W]: 0 for void, labels 1..150 for stuff, label * 256 + number for objects.
    """
    ids = read_labels(ade20k_labels(path), ADE20K_IDS).astype(np.int32)
    colors = np.asarray(load_labels(path, "instance PNG"))
    if colors.shape != (*ids.shape, 3):
        raise UserError(
            f"{path}: expected an RGB PNG of the same size as {ade20k_labels(path)}, "
            f"{[*ids.shape, 3]}, found {list(colors.shape)}."
        )
    is_object = colors[..., 1] > 0
    category, number, _ = colors[is_object].T
    if foreign := sorted(set(np.unique(category).tolist()) - set(range(1, len(ADE20K_THINGS) + 1))):
        raise UserError(
            f"{path}: the red channel has the object categories {foreign}, expected 1..100. Is the "
            "PNG from annotations_instance.tar?"
        )
    label = np.array([0, *ADE20K_THINGS], np.int32)[category]
    ids[is_object] = label * ADE20K_OBJECTS + number
    return ids


def ade20k_labels(path: str | os.PathLike) -> Path:
    """Return the path of the label PNG that belongs to a PNG in ``annotations_instance``."""
    folder, split, name = Path(path).parents[2], Path(path).parent.name, Path(path).name
    return folder / "annotations" / split / name


def ade20k_kind(number: int) -> tuple[int, int]:
    """Return the category id (0..149) and iscrowd (always 0) of an ADE20K segment, given its id."""
    label = number if number < ADE20K_OBJECTS else number // ADE20K_OBJECTS
    return label - 1, 0


class PanopticRelease(NamedTuple):
    """A split of a published panoptic data set: paths, classes, and functions to read the files."""

    split: PanopticSplit  # relative to ``$DETECTRON2_DATASETS``
    num_images: int  # in the release; a warning is logged if another number is found
    image_suffix: str  # the rest of the file name is the image's id
    png_suffix: str
    categories: list[Category]
    kind_of: Callable[[int], tuple[int, int]]  # segment id -> (category id, iscrowd)
    read_segments: Callable[[str | os.PathLike], np.ndarray]
    hint: str  # advice if a folder is missing


def _releases() -> dict[str, PanopticRelease]:
    releases = {}
    for split, folder, city_images, ade_images in (
        ("train", "training", 2975, 20210),
        ("val", "validation", 500, 2000),
    ):
        city, ade = Path("cityscapes"), Path("ADEChallengeData2016")
        labels = city / "gtFine" / split
        releases[f"cityscapes_panoptic_{split}"] = PanopticRelease(
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
        releases[f"ade20k_panoptic_{split}"] = PanopticRelease(
            PanopticSplit(*parts),
            ade_images,
            ".jpg",
            ".png",
            ade20k_categories(),
            ade20k_kind,
            read_ade20k_ids,
            "Unpack ADEChallengeData2016.zip, then unpack annotations_instance.tar in the folder "
            "ADEChallengeData2016.",
        )
    return releases


PANOPTIC_RELEASES = _releases()


@dataclass
class ReleaseSource(PanopticSource):
    """A split of a published data set; its segments are cached until one of its PNGs changes."""

    @property
    def release(self) -> PanopticRelease:
        return PANOPTIC_RELEASES[self.name]

    def read(self) -> PanopticJson:
        """Read the images and their segments from the user's cache, or else from the PNGs."""
        release, (images, _, pngs) = self.release, vars(self.split).values()
        ends = (release.image_suffix,), (release.png_suffix,)
        pairs = LabelledFolder(images, pngs, *ends, hint=release.hint).pairs()
        names = [(str(i.relative_to(images)), str(png.relative_to(pngs))) for i, png in pairs]
        if len(names) != release.num_images:
            logger.warning(
                f"{images}: found {len(names)} images, but the release has {release.num_images}. "
                "Was the archive unpacked completely?"
            )

        def read() -> dict:
            images = list(imap_with_progress(self._image, names, f"read {self.name}"))
            raise_if_any([fault for fault in images if isinstance(fault, str)])
            return {"images": [list(vars(image).values()) for image in images]}

        files = [file for _, png in names for file in self._pngs(png)]
        kept = remembered(f"{self.name}_segments", [str(pngs)], files, read)
        return PanopticJson(
            pngs, release.categories, [PanopticImage(*entry) for entry in kept["images"]]
        )

    def files(self, image: PanopticImage) -> tuple[str, ...]:
        return os.path.join(self.split.images, image.file_name), *self._pngs(image.png_name)

    def _pngs(self, name: str) -> tuple[str, str]:
        """Return the paths of the segment PNG and the label PNG (in Cityscapes, the same file)."""
        split = self.split
        return os.path.join(split.segments, name), os.path.join(split.annotations, name)

    def categories(self) -> list[Category]:
        return self.release.categories

    def _image(self, names: tuple[str, str]) -> PanopticImage | str:
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
    """Return the source of a data set in ``PANOPTIC_RELEASES``, with files below ``root``."""
    release = PANOPTIC_RELEASES[name]
    split = PanopticSplit(*(root / path for path in vars(release.split).values()))
    return ReleaseSource(name, split, read_segments=release.read_segments)


class ServerSplit(NamedTuple):
    """
    A panoptic test set without public ground truth: a benchmark server computes the metrics.

    Evaluation writes files to upload to the server instead of computing metrics.
    """

    classes: dict  # metadata of the classes
    files: tuple[Path, ...]  # image folder first; relative to ``$DETECTRON2_DATASETS``
    load: Callable[..., list[dict]]  # returns records, given the absolute paths of the files

    def metadata(self, images: Path) -> dict:
        return {
            **self.classes,
            "image_root": str(images),
            "evaluator_type": "coco_panoptic_seg",
            "ignore_label": VOID_LABEL,
            "label_divisor": 1000,
        }


def cityscapes_test_images(folder: Path) -> list[dict]:
    """Return a record for each image in the folder, with the image id that the server expects."""
    hint = "Unpack leftImg8bit_trainvaltest.zip of Cityscapes into cityscapes/."
    images = LabelledFolder(folder, None, (CITYSCAPES_SUFFIX,), hint=hint).unlabelled()
    return [
        {"file_name": str(image), "image_id": image.name.removesuffix(CITYSCAPES_SUFFIX)}
        for image in images
    ]


def coco_test_images(folder: Path, image_info: Path) -> list[dict]:
    """Return a record for each image that ``image_info_test-dev2017.json`` lists."""
    listed = [(i["id"], i["file_name"]) for i in read_json(image_info)["images"]]
    for _, name in listed:
        for fault in file_name_faults(name):
            raise UserError(f"{image_info}: {fault}")
    return [{"file_name": str(folder / name), "image_id": number} for number, name in listed]


SERVER_SPLITS = {
    "cityscapes_panoptic_test": ServerSplit(
        panoptic_metadata(cityscapes_categories()),
        (Path("cityscapes/leftImg8bit/test"),),
        cityscapes_test_images,
    ),
    "coco_2017_test-dev_panoptic_separated": ServerSplit(
        _get_builtin_metadata("coco_panoptic_separated"),
        (Path("coco/test2017"), Path("coco/annotations/image_info_test-dev2017.json")),
        coco_test_images,
    ),
}
