"""
Published data sets for semantic segmentation, under the names that configs use.

docs/published_data.md lists their sources and their folders below ``$DETECTRON2_DATASETS``.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from ocr_panoptic.data.semantic.label_space import LabelSpace
from ocr_panoptic.data.semantic.records import LabelledFolder, load_semantic

from . import tables

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedSplit:
    """A split of a published semantic data set."""

    space: LabelSpace
    folders: tuple[LabelledFolder, ...]  # relative to ``$DETECTRON2_DATASETS``
    num_images: int  # in the release; a warning is logged if another number is found


def _cityscapes(split: str, labels: str, archives: str) -> LabelledFolder:
    return LabelledFolder(
        images=Path("cityscapes/leftImg8bit", split),
        labels=Path("cityscapes", labels, split),
        image_suffixes=("_leftImg8bit.png",),
        label_suffixes=(f"_{labels}_labelIds.png",),
        hint=f"Unpack {archives} of Cityscapes into cityscapes/.",
    )


def _plain(images: str, labels: str, hint: str, listed_by_labels: bool = False) -> LabelledFolder:
    return LabelledFolder(Path(images), Path(labels), (".jpg",), (".png",), listed_by_labels, hint)


def _named_splits() -> dict[str, NamedSplit]:
    archives = "leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip"
    train, val, test = (_cityscapes(s, "gtFine", archives) for s in ("train", "val", "test"))
    test = replace(test, labels=None)  # the published label files show no classes
    archives = "leftImg8bit_trainextra.zip and gtCoarse.zip"
    extra = _cityscapes("train_extra", "gtCoarse", archives)
    cityscapes = tables.cityscapes()
    splits = {
        "cityscapes_fine_train_sem": NamedSplit(cityscapes, (train,), 2975),
        "cityscapes_fine_val_sem": NamedSplit(cityscapes, (val,), 500),
        "cityscapes_fine_trainval_sem": NamedSplit(cityscapes, (train, val), 3475),
        "cityscapes_fine_test_sem": NamedSplit(cityscapes, (test,), 1525),
        "cityscapes_coarse_train_extra_sem": NamedSplit(cityscapes, (extra,), 19998),
    }
    ade, vistas = tables.ade20k(), tables.mapillary_vistas()
    for split, folder, ade_images, vistas_images in (
        ("train", "training", 20210, 18000),
        ("val", "validation", 2000, 2000),
    ):
        root, hint = "ADEChallengeData2016", "Unpack ADEChallengeData2016.zip."
        pair = _plain(f"{root}/images/{folder}", f"{root}/annotations/{folder}", hint)
        splits[f"ade20k_{split}_sem"] = NamedSplit(ade, (pair,), ade_images)
        root, hint = f"mapillary_vistas/{folder}", "Unpack Mapillary Vistas, version 1.1."
        pair = _plain(f"{root}/images", f"{root}/labels", hint)
        splits[f"mapillary_vistas_{split}_sem"] = NamedSplit(vistas, (pair,), vistas_images)
    lip = tables.lip()
    for split, num_images in (("train", 30462), ("val", 10000)):
        pair = _plain(
            f"lip/TrainVal_images/{split}_images",
            f"lip/TrainVal_parsing_annotations/{split}_segmentations",
            "Unpack TrainVal_images.zip and TrainVal_parsing_annotations.zip of LIP.",
        )
        splits[f"lip_{split}_sem"] = NamedSplit(lip, (pair,), num_images)
    layout = "Arrange the downloads as docs/published_data.md shows, and run"
    for split, num_images in (("train", 4998), ("val", 5105)):
        pair = _plain(
            "VOC2010/JPEGImages",
            f"pascal_context/labels/{split}",
            f"{layout} datasets/prepare_mat_labels.py pascal_context.",
            listed_by_labels=True,
        )
        for count in (59, 60):
            space = tables.pascal_context(with_background=count == 60)
            splits[f"pascal_context_{count}_{split}_sem"] = NamedSplit(space, (pair,), num_images)
    for split, num_images in (("train", 9000), ("test", 1000)):
        pair = _plain(
            "coco_stuff_10k/images",
            f"coco_stuff_10k/labels/{split}",
            f"{layout} datasets/prepare_mat_labels.py coco_stuff_10k.",
            listed_by_labels=True,
        )
        space = tables.coco_stuff(offset=0, unlabelled=0)
        splits[f"coco_stuff_10k_{split}_sem"] = NamedSplit(space, (pair,), num_images)
    for split, num_images in (("train", 118287), ("val", 5000)):
        pair = _plain(
            f"coco/{split}2017",
            f"coco/stuffthingmaps/{split}2017",
            "Unpack train2017.zip and val2017.zip into coco/, and "
            "stuffthingmaps_trainval2017.zip into coco/stuffthingmaps/.",
        )
        space = tables.coco_stuff(offset=-1, unlabelled=255)
        splits[f"coco_stuff_164k_{split}_sem"] = NamedSplit(space, (pair,), num_images)
    return splits


NAMED_SPLITS = _named_splits()


def load_named(name: str, root: Path) -> list[dict]:
    """Return a published split's records; warn if the image count differs from the release's."""
    split = NAMED_SPLITS[name]
    folders = [
        replace(folder, images=root / folder.images, labels=folder.labels and root / folder.labels)
        for folder in split.folders
    ]
    records = load_semantic(name, folders)
    if len(records) != split.num_images:
        logger.warning(
            f"{name}: found {len(records)} images, but the release has {split.num_images}. Was "
            "the archive unpacked completely?"
        )
    return records
