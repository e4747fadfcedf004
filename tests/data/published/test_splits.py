"""Miniatures of the published layouts, with real file names and every raw label."""

from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data.catalog import semantic_class_count
from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.data.published.splits import NAMED_SPLITS
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper

CITY = "cityscapes/leftImg8bit"


def city(labels: str, *frames: str) -> dict[str, str]:
    return {
        f"{CITY}/{frame}_leftImg8bit.png": f"cityscapes/{labels}/{frame}_{labels}_labelIds.png"
        for frame in frames
    }


# Data set -> {image: label PNG}. If there are several images, the first has every raw label.
LAYOUTS = {
    "cityscapes_fine_train_sem": city(
        "gtFine", "train/aachen/aachen_000000_000019", "train/zurich/zurich_000121_000019"
    ),
    "cityscapes_fine_val_sem": city("gtFine", "val/munster/munster_000173_000019"),
    "cityscapes_coarse_train_extra_sem": city(
        "gtCoarse", "train_extra/augsburg/augsburg_000000_000000"
    ),
}
# Data set, its folder, an image in it, and the folder of the image's label PNG.
for line in """
ade20k_train ADEChallengeData2016 images/training/ADE_train_00000001 annotations/training
ade20k_val ADEChallengeData2016 images/validation/ADE_val_00000001 annotations/validation
lip_train lip TrainVal_images/train_images/77_471474 TrainVal_parsing_annotations/train_segmentations
lip_val lip TrainVal_images/val_images/36_454991 TrainVal_parsing_annotations/val_segmentations
pascal_context_59_train . VOC2010/JPEGImages/2008_000002 pascal_context/labels/train
pascal_context_59_val . VOC2010/JPEGImages/2008_000003 pascal_context/labels/val
pascal_context_60_train . VOC2010/JPEGImages/2008_000002 pascal_context/labels/train
pascal_context_60_val . VOC2010/JPEGImages/2008_000003 pascal_context/labels/val
coco_stuff_10k_train coco_stuff_10k images/COCO_train2014_000000000077 labels/train
coco_stuff_10k_test coco_stuff_10k images/COCO_train2014_000000000194 labels/test
coco_stuff_164k_train coco train2017/000000000009 stuffthingmaps/train2017
coco_stuff_164k_val coco val2017/000000000139 stuffthingmaps/val2017
mapillary_vistas_train mapillary_vistas/training images/__CRyFzoDOXn6unQ6a3DnQ labels
mapillary_vistas_val mapillary_vistas/validation images/_1Gn_xkw7sa_i9GU4mkxxQ labels
""".strip().splitlines():  # noqa: E501
    name, folder, image, labels = line.split()
    label_png = Path(folder, labels, Path(image).name)
    LAYOUTS[f"{name}_sem"] = {f"{Path(folder, image)}.jpg": f"{label_png}.png"}
ALL = {*LAYOUTS, "cityscapes_fine_trainval_sem", "cityscapes_fine_test_sem"}


def write(root: Path, name: str) -> np.ndarray:
    """Write the miniature of a data set; return the first image's raw labels, [1, number]."""
    raw = np.array([sorted(NAMED_SPLITS[name].space.label_map)])
    raw = raw.astype(np.uint8 if raw.max() < 256 else np.uint16)
    for image, label_png in LAYOUTS[name].items():
        for path in (image, label_png):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", raw.shape[::-1]).save(root / image)
        labels = Image.fromarray(raw)
        if name.startswith("mapillary"):  # published with a palette
            labels = labels.convert("P")
            labels.putpalette([90, 120, 150] * 256)
        labels.save(root / label_png)
        if "labelIds" in label_png:  # Cityscapes also has other files beside them
            for kind in ("instanceIds.png", "color.png", "polygons.json", "labelTrainIds.png"):
                (root / label_png.replace("labelIds.png", kind)).touch()
    return raw


@pytest.fixture
def root(tmp_path, clean_catalog) -> Path:
    register_published([], tmp_path)
    return tmp_path


@pytest.fixture
def mapper(semantic_cfg):
    def make(name: str, is_train: bool = True) -> SemanticDatasetMapper:
        semantic_cfg.DATASETS.TRAIN = (name,)
        semantic_cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = semantic_class_count(name)
        return SemanticDatasetMapper(semantic_cfg, is_train)

    return make


def test_every_name_is_tested():
    assert set(NAMED_SPLITS) == ALL


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_and_every_raw_label(root, name, mapper):
    raw = write(root, name)
    records = DatasetCatalog.get(name)
    assert [(r["file_name"], r["sem_seg_file_name"]) for r in records] == [
        (str(root / image), str(root / label_png)) for image, label_png in LAYOUTS[name].items()
    ]
    label_map = MetadataCatalog.get(name).label_map
    expected = [[label_map[value] for value in raw[0].tolist()]]
    assert mapper(name)(records[0])["sem_seg"].tolist() == expected


def test_cityscapes_trainval_has_both_splits(root, mapper):
    write(root, "cityscapes_fine_train_sem")
    write(root, "cityscapes_fine_val_sem")
    records = DatasetCatalog.get("cityscapes_fine_trainval_sem")
    cities = [Path(record["file_name"]).parent.name for record in records]
    assert cities == ["aachen", "zurich", "munster"]
    labels = mapper("cityscapes_fine_trainval_sem")(records[2])["sem_seg"]
    assert labels.unique().tolist() == [*range(19), 255]


def test_cityscapes_test_can_only_be_predicted(root, mapper):
    path = root / CITY / "test/berlin/berlin_000000_000019_leftImg8bit.png"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (4, 2)).save(path)
    name = "cityscapes_fine_test_sem"
    (record,) = DatasetCatalog.get(name)
    assert record == {"file_name": str(path), "dataset_name": name}
    assert mapper(name, is_train=False)(record)["image"].shape == (3, 2, 4)


def test_a_missing_folder_gets_a_hint(root):
    with pytest.raises(FileNotFoundError, match="train_extra: .* not found. Unpack left.*gtCo"):
        DatasetCatalog.get("cityscapes_coarse_train_extra_sem")


def test_an_incomplete_release_gives_a_warning(root, caplog):
    write(root, "ade20k_val_sem")
    DatasetCatalog.get("ade20k_val_sem")
    assert "ade20k_val_sem: found 1 images, but the release has 2000" in caplog.text
