"""Registered data in Detectron2's own format, loaders and evaluators."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from detectron2.config import get_cfg
from detectron2.data import (
    DatasetCatalog,
    MetadataCatalog,
    build_detection_test_loader,
    build_detection_train_loader,
)
from detectron2.evaluation import COCOEvaluator, COCOPanopticEvaluator
from detectron2.modeling import build_model
from detectron2.structures import BitMasks, BoxMode, Instances
from detectron2.utils.events import EventStorage
from raw_pets import CAT, DOG, FIRST, GRASS

from ocr_panoptic.coco_panoptic import read_panoptic_png
from ocr_panoptic.data import (
    PanopticDatasetMapper,
    check_files,
    class_counts,
    prepare_panoptic,
    register_prepared,
    register_semantic_datasets,
)
from ocr_panoptic.data.published.splits import NAMED_SPLITS

pytestmark = pytest.mark.usefixtures("clean_catalog")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "datasets"


def prepare(raw, root, name="pets"):
    return prepare_panoptic(name, {"train": raw.save().split}, root / name, workers=1)


@pytest.fixture
def registered(raw, root):
    """The name of the data set."""
    prepare(raw, root)
    (name,) = register_prepared(root)
    return name


def panoptic_config(name):
    cfg = get_cfg()
    cfg.merge_from_list(["DATASETS.TRAIN", (name,), "DATASETS.TEST", (name,)])
    cfg.merge_from_list(["DATALOADER.FILTER_EMPTY_ANNOTATIONS", False])
    cfg.merge_from_list(["DATALOADER.NUM_WORKERS", 0, "SOLVER.IMS_PER_BATCH", 2])
    cfg.merge_from_list(["INPUT.MASK_FORMAT", "bitmask", "MODEL.MASK_ON", True])
    cfg.merge_from_list(["INPUT.MIN_SIZE_TRAIN", (32,), "INPUT.MIN_SIZE_TEST", 0])
    cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = class_counts(name)
    return cfg


def test_metadata(registered):
    assert registered == "pets_train"
    metadata = MetadataCatalog.get("pets_train").as_dict()
    theirs = MetadataCatalog.get("coco_2017_val_panoptic_separated").as_dict()
    assert set(metadata) == {*theirs, "label_divisor", "mask_format", "channels"}
    assert metadata["thing_classes"] == ["cat", "dog"]
    assert metadata["stuff_classes"] == ["things", "sky", "grass"]
    assert metadata["thing_dataset_id_to_contiguous_id"] == {4: 0, 9: 1}
    assert metadata["stuff_dataset_id_to_contiguous_id"] == {0: 0, 7: 1, 30: 2}
    assert metadata["evaluator_type"] == theirs["evaluator_type"]
    assert metadata["ignore_label"] == theirs["ignore_label"]
    assert class_counts("pets_train") == (2, 3)


def test_records(registered, raw, root):
    second, first = DatasetCatalog.get("pets_train")  # by ascending image id
    assert first["file_name"] == str(raw.image("first.jpg"))
    assert second["file_name"] == str(raw.image("more/second.bmp"))
    assert second["sem_seg_file_name"] == str(root / "pets/sem_seg_train/more/second.png")
    assert second["pan_seg_file_name"] == str(raw.png("more/second.png"))
    assert [(r["image_id"], r["height"], r["width"]) for r in (first, second)] == [
        (21, 6, 8),
        (5, 4, 5),
    ]
    dog, crowd = first["annotations"]
    assert (dog["category_id"], dog["iscrowd"], dog["bbox"]) == (1, 0, [1, 1, 4, 3])
    assert (crowd["category_id"], crowd["iscrowd"], crowd["bbox"]) == (0, 1, [3, 3, 2, 2])
    assert dog["bbox_mode"] == BoxMode.XYWH_ABS
    assert [
        (segment["id"], segment["category_id"], segment["isthing"])
        for segment in first["segments_info"]
    ] == [(70000, 1, False), (3, 2, False), (500, 1, True), (900, 0, True)]


def test_images_are_read_only_when_asked_for(raw, root):
    prepare(raw, root)
    (root / "pets" / "instances_train.json").unlink()
    register_prepared(root)
    with pytest.raises(FileNotFoundError, match=r"instances_train\.json: not found\. Run"):
        DatasetCatalog.get("pets_train")


def test_class_counts_of_coco():
    assert class_counts("coco_2017_val_panoptic_separated") == (80, 54)


@pytest.mark.parametrize("lost", ["instances_train.json", "panoptic_train.json", "sem_seg_train"])
def test_missing_files_are_told_before_they_are_read(registered, root, lost):
    check_files([registered])
    (root / "pets" / lost).rename(root / "moved")
    with pytest.raises(FileNotFoundError, match=f"Data set pets_train: not found: .*/pets/{lost}"):
        check_files([registered])


def test_missing_files_of_other_data_sets(tmp_path):
    register_semantic_datasets(tmp_path)
    with pytest.raises(FileNotFoundError, match="leftImg8bit"):
        check_files([next(n for n in NAMED_SPLITS if "cityscapes" in n)])
    with pytest.raises(FileNotFoundError, match="instances_val2017.json"):
        check_files(["coco_2017_val_panoptic_separated"])
    DatasetCatalog.register("theirs", lambda: [])
    MetadataCatalog.get("theirs").set(json_file="s3://bucket/a.json")
    check_files(["theirs"])


def test_class_counts_of_what_is_not_registered(registered):
    with pytest.raises(ValueError, match=r"'pots_train' is not registered.*here: pets_train"):
        class_counts("pots_train")


@pytest.mark.parametrize("name", ["coco_2017_val", "coco_2017_val_panoptic"])
def test_class_counts_of_another_layout(name):
    with pytest.raises(ValueError, match=f"'{name}' is not laid out for Panoptic-FPN"):
        class_counts(name)


def test_registering_again_takes_what_is_there_then(registered, raw, root):
    assert register_prepared(root) == [registered]
    raw.content["categories"][0]["name"] = "lion"
    prepare(raw, root)
    register_prepared(root)
    assert MetadataCatalog.get("pets_train").thing_classes == ["lion", "dog"]


def test_root_is_detectron2s(registered, root, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(root))
    assert register_prepared() == [registered]


def test_a_moved_folder_stays_whole(raw, root):
    prepare_panoptic("pets", {"train": raw.split}, raw.folder, workers=1)
    root.mkdir()
    raw.folder.rename(root / "moved")
    register_prepared(root)
    record = DatasetCatalog.get("pets_train")[0]
    assert record["file_name"] == str(root / "moved" / "images" / "more" / "second.bmp")


def test_nothing_prepared(root):
    assert register_prepared(root) == []


def test_manifest_of_something_else_is_left_alone(root):
    (root / "other").mkdir(parents=True)
    (root / "other" / "dataset.json").write_text('{"name": "theirs"}')
    assert register_prepared(root) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content.update(version=99), "version is 99, expected 1"),
        (lambda content: content.pop("splits"), "'splits'"),
        (lambda content: content["splits"]["train"].pop("images"), "images"),
        (lambda content: content["categories"].clear(), '"categories" holds no category'),
    ],
)
def test_broken_manifest(raw, root, spoil, message):
    path = prepare(raw, root)
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"dataset\.json: not a usable manifest") as error:
        register_prepared(root)
    assert message in str(error.value)


def test_truncated_manifest(raw, root):
    path = prepare(raw, root)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"dataset\.json: is not JSON .* Mend it, or move it out"):
        register_prepared(root)


def test_two_data_sets_of_one_name(raw, root):
    prepare(raw, root)
    shutil.copytree(root / "pets", root / "copy")
    with pytest.raises(ValueError, match="Two data sets are named pets_train"):
        register_prepared(root)


def test_name_of_detectron2(raw, root):
    rename(prepare(raw, root), "coco_2017")
    with pytest.raises(ValueError, match="coco_2017_train belongs to a data set that is regist"):
        register_prepared(root)


def rename(manifest, name):
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "name": name}))


STRANGE = {
    "a name of Detectron2": lambda path: rename(path, "coco_2017"),
    "a name that is none": lambda path: rename(path, "\x1b[31m"),
    "truncated": lambda path: path.write_text(path.read_text()[:100]),
    "nested": lambda path: path.write_text("[" * 100_000),
    "no object": lambda path: path.write_text("[1]"),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
    "too large": lambda path: os.truncate(path, 1 << 30),
}


@pytest.mark.parametrize("spoil", STRANGE.values(), ids=STRANGE)
def test_only_data_in_use_are_read(raw, root, spoil):
    prepare(raw, root)
    for folder in ("broken", "another"):
        shutil.copytree(root / "pets", root / folder)
    rename(root / "another/dataset.json", "another")
    spoil(root / "broken/dataset.json")
    names = register_prepared(root, wanted=["pets_train", "coco_2017_val_panoptic_separated"])
    assert {"another_train", "pets_train"} <= set(names)
    assert "pets_train" in DatasetCatalog and "another_train" not in DatasetCatalog


def test_a_copy_of_data_in_use(raw, root):
    prepare(raw, root)
    rename(prepare(raw, root, "others"), "pets")
    register_prepared(root, wanted=["coco_2017_val_panoptic_separated"])
    with pytest.raises(ValueError, match="Two data sets are named pets_train: .* Move one of them"):
        register_prepared(root, wanted=["pets_train"])


def test_data_in_use_that_cannot_be_read(raw, root):
    path = prepare(raw, root)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"pets_train not found, and broken: .*/pets/dataset"):
        register_prepared(root, wanted=["pets_train"])


@pytest.mark.parametrize("complete", [False, None])
def test_an_unfinished_preparation_is_not_used(raw, root, complete):
    """None: an earlier version's, of which it cannot be known."""
    path = prepare(raw, root)
    content = json.loads(path.read_text())
    assert content.pop("complete") is True
    path.write_text(json.dumps(content if complete is None else {**content, "complete": False}))
    message = "dataset.json: the preparation of pets has not come to its end .* Run datasets/prep"
    for wanted in (["pets_train"], None):
        with pytest.raises(ValueError, match=message):
            register_prepared(root, wanted=wanted)
    register_prepared(root, wanted=[])
    prepare(raw, root)
    assert register_prepared(root) == ["pets_train"]


def test_data_without_any_thing_trains(raw, root, small_cfg):
    """Thing categories without an instance: the loader yields images with empty instances, and
    the model learns from their semantic labels."""
    for annotation in raw.content["annotations"]:
        for segment in annotation["segments_info"]:
            if segment["category_id"] in (CAT, DOG):
                segment.update(category_id=GRASS, iscrowd=0)
    prepare(raw, root)
    register_prepared(root)
    assert class_counts("pets_train") == (2, 3)
    cfg = panoptic_config("pets_train")
    batch = next(iter(build_detection_train_loader(cfg, mapper=PanopticDatasetMapper(cfg, True))))
    assert [len(sample["instances"]) for sample in batch] == [0, 0]
    assert all(sample["sem_seg"].unique().tolist() == [1, 2, 255] for sample in batch)
    model = build_model(small_cfg()).train()
    with EventStorage():
        losses = model(batch)
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert losses["loss_box_reg"] == losses["loss_mask"] == 0
    assert losses["loss_sem_seg"] > 0
    sum(losses.values()).backward()


def perfect_output(record):
    """What a model would put out that knows the truth."""
    ids = read_panoptic_png(record["pan_seg_file_name"])
    segments = [
        {"id": s["id"], "category_id": s["category_id"], "isthing": s["isthing"]}
        for s in record["segments_info"]
        if not s["iscrowd"]
    ]
    ids[~np.isin(ids, [segment["id"] for segment in segments])] = 0
    things = [segment for segment in segments if segment["isthing"]]
    masks = torch.tensor(np.stack([ids == thing["id"] for thing in things]))
    instances = Instances(ids.shape)
    instances.pred_masks = masks
    instances.pred_boxes = BitMasks(masks).get_bounding_boxes()
    instances.scores = torch.ones(len(things))
    instances.pred_classes = torch.tensor([thing["category_id"] for thing in things])
    return {"panoptic_seg": (torch.tensor(ids), segments), "instances": instances}


def test_detectron2s_evaluators_give_100_for_the_truth(raw, root, tmp_path):
    """Images in sub-folders are left out: Detectron2's evaluator names its files without them."""
    raw.content["images"][1]["file_name"] = "second.bmp"
    raw.image("more/second.bmp").rename(raw.image("second.bmp"))
    prepare(raw, root)
    register_prepared(root)
    cfg = panoptic_config("pets_train")
    loader = build_detection_test_loader(
        cfg, "pets_train", mapper=PanopticDatasetMapper(cfg, False)
    )
    panoptic = COCOPanopticEvaluator("pets_train")
    instances = COCOEvaluator(
        "pets_train", ("bbox", "segm"), False, str(tmp_path), use_fast_impl=False
    )
    for evaluator in (panoptic, instances):
        evaluator.reset()
        for (sample,) in loader:
            evaluator.process([sample], [perfect_output(sample)])
    quality = panoptic.evaluate()["panoptic_seg"]
    assert quality["PQ_st"] == quality["PQ_th"] == 100
    precision = instances.evaluate()
    assert precision["bbox"]["AP-cat"] == precision["segm"]["AP-cat"] == pytest.approx(100)
    assert precision["bbox"]["AP-dog"] == precision["segm"]["AP-dog"] == pytest.approx(100)


def test_loader_yields_the_masks_of_the_png(registered):
    cfg = panoptic_config("pets_train")
    mapper = PanopticDatasetMapper(
        is_train=True,
        augmentations=[],
        image_format="BGR",
        use_instance_mask=True,
        instance_mask_format="bitmask",
        num_sem_seg_classes=cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
    )
    sample = mapper(DatasetCatalog.get("pets_train")[1])
    masks = sample["instances"].gt_masks.tensor.numpy()
    assert np.array_equal(masks, [FIRST == 500]), "the crowd is no instance to train on"
    assert sample["instances"].gt_classes.tolist() == [1]
