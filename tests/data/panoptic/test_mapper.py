"""The mapper equals Detectron2's on good data, and names the file of every fault."""

import os
import pickle

import numpy as np
import pytest
import torch
from detectron2.config import get_cfg
from detectron2.data import DatasetMapper
from detectron2.structures import BitMasks, Boxes, Instances
from PIL import Image
from pycocotools import mask as mask_util

from ocr_panoptic import add_ocr_config
from ocr_panoptic.data.panoptic.mapper import PanopticDatasetMapper
from ocr_panoptic.data.panoptic.segment_masks import SegmentMasks
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.formats.pictures import read_picture


@pytest.fixture
def record(tmp_path):
    rng = np.random.default_rng(0)
    image, labels = tmp_path / "a.jpg", tmp_path / "a.png"
    Image.fromarray(rng.integers(0, 256, (60, 90, 3), np.uint8)).save(image)
    Image.fromarray(rng.choice([0, 1, 2, 255], (60, 90)).astype(np.uint8)).save(labels)
    box = {"bbox": [3, 4, 20, 30], "bbox_mode": 1, "category_id": 0}
    return {
        **{"file_name": str(image), "sem_seg_file_name": str(labels)},
        **{"height": 60, "width": 90, "image_id": 1},
        "annotations": [{**box, "iscrowd": iscrowd} for iscrowd in (0, 1)],
    }


@pytest.fixture
def cfg():
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 3
    cfg.INPUT.MIN_SIZE_TRAIN = (48, 72)
    return cfg


def mapped(mapper_class, cfg, is_train, record):
    np.random.seed(3)  # noqa: NPY002, Detectron2's augmentations draw from it
    return mapper_class(cfg, is_train)(record)


@pytest.mark.parametrize("is_train", [True, False])
@pytest.mark.parametrize("crop", [True, False])
def test_equals_detectron2s(cfg, record, is_train, crop):
    cfg.INPUT.CROP.ENABLED = crop
    cfg.MODEL.MASK_ON = False
    ours, theirs = (
        mapped(mapper, cfg, is_train, record) for mapper in (PanopticDatasetMapper, DatasetMapper)
    )
    assert ours.keys() == theirs.keys()
    assert torch.equal(ours["image"], theirs["image"])
    assert torch.equal(ours["sem_seg"], theirs["sem_seg"])
    if is_train:
        assert str(ours["instances"]) == str(theirs["instances"])


def test_a_record_stays_unchanged(cfg, record):
    """Detectron2 itself transforms polygons in place if they are arrays."""
    cfg.MODEL.MASK_ON = True
    polygon = np.array([3.0, 4, 23, 4, 23, 34])
    record["annotations"] = [{**record["annotations"][0], "segmentation": [polygon]}]
    mapped(PanopticDatasetMapper, cfg, True, record)
    assert polygon.tolist() == [3, 4, 23, 4, 23, 34] and "annotations" in record


def test_crop_after_resize(cfg, record):
    """Images of different sizes give crops of equal size, with boxes that fit the masks."""
    cfg.MODEL.MASK_ON, cfg.INPUT.MASK_FORMAT = True, "bitmask"
    mask = np.zeros((60, 90), np.uint8)
    mask[4:34, 3:23] = 1
    for annotation in record["annotations"]:
        annotation["segmentation"] = mask_util.encode(np.asfortranarray(mask))
    cfg.INPUT.CROP.ENABLED, cfg.INPUT.CROP.TYPE, cfg.INPUT.CROP.SIZE = True, "absolute", [30, 45]
    cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.MIN_SIZE_TRAIN_SAMPLING = (30, 120), "range"

    def sizes(after: bool) -> list[tuple[int, int]]:
        cfg.INPUT.CROP.AFTER_RESIZE = after
        mapper = PanopticDatasetMapper(cfg, True)
        np.random.seed(0)  # noqa: NPY002
        found = [mapper(record) for _ in range(20)]
        for one in found:
            assert one["sem_seg"].shape == one["image"].shape[1:] == one["instances"].image_size
            if len(one["instances"]):
                boxes = one["instances"].gt_masks.get_bounding_boxes()
                assert torch.equal(boxes.tensor, one["instances"].gt_boxes.tensor)
        return [tuple(one["image"].shape[1:]) for one in found]

    assert set(sizes(after=True)) == {(30, 45)}
    assert len(set(sizes(after=False))) > 10


LABELS = "sem_seg_file_name"
FAULTS = [
    (lambda r: os.remove(r["file_name"]), "a.jpg: image not found"),
    (lambda r: os.truncate(r[LABELS], 99), "a.png: the semantic PNG is broken or truncated"),
    (lambda r: Image.new("L", (91, 60)).save(r[LABELS]), r"labels have 91x60 .*a\.jpg has 90x60"),
    (lambda r: Image.new("L", (60, 90)).save(r[LABELS]), r"a\.png: the labels have 60x90 pixels"),
    (
        lambda r: r.update(width=91),
        r"a\.jpg: the image has 90x60 .*, expected 91x60 .* the annotations",
    ),
]


@pytest.mark.parametrize("is_train", [True, False])
@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_files_that_do_not_fit(cfg, record, spoil, message, is_train):
    cfg.INPUT.MIN_SIZE_TEST = 0  # without a resize, Detectron2 would not notice
    spoil(record)
    with pytest.raises((FileNotFoundError, UserError), match=message):
        mapped(PanopticDatasetMapper, cfg, is_train, record)


def test_labels_outside_the_classes(cfg, record):
    labels = np.zeros((60, 90), np.uint8)
    labels[:2, :10], labels[5, 5], labels[50:] = 3, 77, 255
    Image.fromarray(labels).save(record["sem_seg_file_name"])
    found = r"a\.png: found the labels 3 \(20 pixels\), 77 \(1 pixels\); expected 0..2,.*is 3"
    with pytest.raises(ValueError, match=found):
        mapped(PanopticDatasetMapper, cfg, True, record)
    cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE = 254
    with pytest.raises(ValueError, match=r"labels 3 .* 255 \(\d+ pixels\); .* 0\.\.2, or 254"):
        mapped(PanopticDatasetMapper, cfg, True, record)


@pytest.fixture
def panoptic_record(tmp_path, record):
    rng = np.random.default_rng(1)
    ids = rng.choice([0, 1000], (60, 90)).astype(np.int32)
    ids[20:, 30:] = 70000
    ids[5:25, 10:50] = 300
    ids[rng.random((60, 90)) < 0.1] = 7
    ids[50:58, 3:20] = 99
    write_panoptic_png(tmp_path / "ids.png", ids)
    keys = "id", "category_id", "isthing", "iscrowd"
    segments = [(300, 0, True, 0), (7, 2, True, 0), (99, 1, True, 1)]
    segments += [(1000, 2, False, 0), (70000, 1, False, 0)]
    return describe(
        {**record, "pan_seg_file_name": str(tmp_path / "ids.png")},
        [dict(zip(keys, segment)) for segment in segments],
    )


def describe(record: dict, segments: list[dict]) -> dict:
    keys = "category_id", "iscrowd"
    things = [{"segment_id": s["id"], **{k: s[k] for k in keys}} for s in segments if s["isthing"]]
    record = {key: value for key, value in record.items() if key != "sem_seg_file_name"}
    return {**record, "segments_info": segments, "annotations": things}


def as_detectron2_wants(record: dict) -> dict:
    """Return the record with pycocotools' instances and a semantic PNG, made pixel by pixel."""
    ids = read_panoptic_png(record["pan_seg_file_name"])
    labels, annotations = np.full(ids.shape, 255, np.uint8), []
    for segment in record["segments_info"]:
        mask = ids == segment["id"]
        labels[mask] = 0 if segment["isthing"] else segment["category_id"]
        if segment["isthing"]:
            code = mask_util.encode(np.asfortranarray(mask.astype(np.uint8)))
            box = [int(value) for value in mask_util.toBbox(code)]
            own = {key: segment[key] for key in ("category_id", "iscrowd")}
            annotations.append({**own, "bbox": box, "bbox_mode": 1, "segmentation": code})
    path = record["pan_seg_file_name"].replace("ids", "labels")
    Image.fromarray(labels).save(path)
    return {**record, "sem_seg_file_name": path, "annotations": annotations}


@pytest.mark.parametrize("is_train", [True, False])
@pytest.mark.parametrize("crop", [True, False])
@pytest.mark.parametrize("masks", [True, False])
def test_a_panoptic_png_gives_the_same_as_derived_files(
    cfg, panoptic_record, is_train, crop, masks
):
    cfg.INPUT.CROP.ENABLED, cfg.INPUT.MASK_FORMAT, cfg.MODEL.MASK_ON = crop, "bitmask", masks
    ours = mapped(PanopticDatasetMapper, cfg, is_train, panoptic_record)
    theirs = mapped(DatasetMapper, cfg, is_train, as_detectron2_wants(panoptic_record))
    assert torch.equal(ours["image"], theirs["image"])
    if is_train:
        assert torch.equal(ours["sem_seg"], theirs["sem_seg"])
        assert ours["sem_seg"].dtype == theirs["sem_seg"].dtype
        ours, theirs = ours["instances"], theirs["instances"]
        assert ours.get_fields().keys() == theirs.get_fields().keys()
        assert len(ours) == 2
        assert torch.equal(ours.gt_boxes.tensor, theirs.gt_boxes.tensor)
        assert torch.equal(ours.gt_classes, theirs.gt_classes)
        assert not masks or torch.equal(ours.gt_masks.tensor, theirs.gt_masks.tensor)


def test_turns_and_flips_of_masks_and_boxes(cfg, panoptic_record):
    """All eight orientations equal NumPy's, also of void and crowds; each box fits its mask."""
    cfg.INPUT.RANDOM_FLIP, cfg.INPUT.RANDOM_ROTATE_90, cfg.INPUT.IGNORE_VOID = "both", True, True
    cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.MASK_FORMAT, cfg.MODEL.MASK_ON = (0,), "bitmask", True
    ids = read_panoptic_png(panoptic_record["pan_seg_file_name"])
    image = read_picture(panoptic_record["file_name"], "BGR", 3)
    ways = [(quarters, way) for quarters in range(4) for way in (np.array, np.fliplr)]
    sides = [lambda x, k=k, way=way: way(np.rot90(x, k)) for k, way in ways]
    mapper, seen = PanopticDatasetMapper(cfg, True), set()
    np.random.seed(0)  # noqa: NPY002
    for _ in range(60):
        found = mapper(panoptic_record)
        pixels = found["image"].numpy().transpose(1, 2, 0)
        (i,) = [i for i, side in enumerate(sides) if np.array_equal(side(image), pixels)]
        masks = [sides[i](ids) == number for number in (300, 7)]
        instances = found["instances"]
        assert np.array_equal(instances.gt_masks.tensor.numpy(), masks)
        assert torch.equal(
            instances.gt_boxes.tensor, instances.gt_masks.get_bounding_boxes().tensor
        )
        assert np.array_equal(found["sem_seg"] == 0, np.isin(sides[i](ids), (300, 7, 99)))
        assert np.array_equal(instances.ignored, np.isin(sides[i](ids), (0, 99)))
        seen.add(i)
    assert len(seen) == 8


@pytest.mark.parametrize("polygons", [True, False])
def test_void_and_crowds_are_ignored(cfg, panoptic_record, polygons):
    """In both kinds of files, cropped and resized; only if INPUT.IGNORE_VOID is set."""
    cfg.INPUT.CROP.ENABLED, cfg.INPUT.MASK_FORMAT, cfg.MODEL.MASK_ON = True, "bitmask", True
    derived = as_detectron2_wants(panoptic_record)
    if polygons:  # the crowd becomes a rectangle without holes
        cfg.INPUT.CROP.ENABLED = False  # Detectron2's crops of polygons need shapely
        cfg.INPUT.MIN_SIZE_TRAIN = (60,)
        ids = read_panoptic_png(panoptic_record["pan_seg_file_name"])
        ids[50:58, 3:20] = 99
        write_panoptic_png(panoptic_record["pan_seg_file_name"], ids)
        (crowd,) = (a for a in derived["annotations"] if a["iscrowd"])
        crowd["segmentation"] = [[3, 50, 20, 50, 20, 58, 3, 58]]
    for record in (panoptic_record, derived):
        assert type(mapped(PanopticDatasetMapper, cfg, True, record)["instances"]) is Instances
    cfg.INPUT.IGNORE_VOID = True
    first, second = (
        mapped(PanopticDatasetMapper, cfg, True, record) for record in (panoptic_record, derived)
    )
    sent = pickle.loads(pickle.dumps(first["instances"])).to("cpu")
    assert torch.equal(sent.ignored, second["instances"].ignored)
    is_crowd = sent.ignored & (first["sem_seg"] != 255)
    assert is_crowd.any() and (first["sem_seg"][is_crowd] == 0).all()
    assert sent.ignored[first["sem_seg"] == 255].all()
    assert len(sent) == len(second["instances"]) == 2 and not sent.ignored.all()
    of_stuff = [
        s | {"iscrowd": 1} if not s["isthing"] else s for s in panoptic_record["segments_info"]
    ]
    found = mapped(PanopticDatasetMapper, cfg, True, describe(panoptic_record, of_stuff))
    assert torch.equal(found["instances"].ignored, sent.ignored), "stuff has no crowds"
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 1  # no stuff: void is background
    things = [s for s in panoptic_record["segments_info"] if s["isthing"]]
    ids = read_panoptic_png(panoptic_record["pan_seg_file_name"])
    write_panoptic_png(panoptic_record["pan_seg_file_name"], np.where(ids >= 1000, 0, ids))
    found = mapped(PanopticDatasetMapper, cfg, True, describe(panoptic_record, things))
    assert torch.equal(found["instances"].ignored, is_crowd)
    write_panoptic_png(panoptic_record["pan_seg_file_name"], np.full((60, 90), 300))
    whole = describe(panoptic_record, panoptic_record["segments_info"][:1])
    assert type(mapped(PanopticDatasetMapper, cfg, True, whole)["instances"]) is Instances


def test_more_than_256_segments(cfg, panoptic_record):
    ids = np.arange(60 * 90, dtype=np.int32).reshape(60, 90) // 9
    write_panoptic_png(panoptic_record["pan_seg_file_name"], ids)
    thing = {"category_id": 0, "isthing": True, "iscrowd": 0}
    segments = [{**thing, "id": number} for number in range(1, 600)]
    panoptic_record = describe(panoptic_record, segments)
    cfg.MODEL.MASK_ON, cfg.INPUT.MASK_FORMAT = True, "bitmask"
    ours = mapped(PanopticDatasetMapper, cfg, True, panoptic_record)["instances"]
    theirs = mapped(DatasetMapper, cfg, True, as_detectron2_wants(panoptic_record))["instances"]
    assert torch.equal(ours.gt_masks.tensor, theirs.gt_masks.tensor) and len(ours) > 256
    assert torch.equal(ours.gt_boxes.tensor, theirs.gt_boxes.tensor)


def test_own_instances_come_first(cfg, panoptic_record):
    """COCO's recipe has labels from the panoptic PNG and instances from a separate JSON."""
    cfg.MODEL.MASK_ON = False
    own = {"bbox": [3, 4, 20, 30], "bbox_mode": 1, "category_id": 1, "iscrowd": 0}
    panoptic_record["annotations"] = [own]
    found = mapped(PanopticDatasetMapper, cfg, True, panoptic_record)
    assert found["instances"].gt_classes.tolist() == [1]
    assert set(found["sem_seg"].unique().tolist()) == {0, 1, 2, 255}


def test_an_image_with_only_stuff_can_be_cropped(cfg, panoptic_record):
    kind = {"isthing": False, "category_id": 1}
    stuff = [{**segment, **kind} for segment in panoptic_record["segments_info"]]
    panoptic_record = describe(panoptic_record, stuff)
    cfg.INPUT.CROP.ENABLED, cfg.INPUT.MASK_FORMAT, cfg.MODEL.MASK_ON = True, "bitmask", True
    assert len(mapped(PanopticDatasetMapper, cfg, True, panoptic_record)["instances"]) == 0


@pytest.mark.parametrize("is_train", [True, False])
def test_a_panoptic_png_that_has_changed(cfg, panoptic_record, is_train):
    path = panoptic_record["pan_seg_file_name"]
    ids = read_panoptic_png(path)
    write_panoptic_png(path, np.full((60, 90), 12345))
    with pytest.raises(ValueError, match=r"ids\.png: .* 7, 99, 300, 1000, 12345, .* Was"):
        mapped(PanopticDatasetMapper, cfg, is_train, panoptic_record)
    ids[ids == 300] = 0
    write_panoptic_png(path, ids)
    with pytest.raises(ValueError, match=r"ids\.png: the PNG and .* 300\. Was"):
        mapped(PanopticDatasetMapper, cfg, is_train, panoptic_record)
    hidden = {**panoptic_record, "hides_segments": True}  # then others may cover it
    mapped(PanopticDatasetMapper, cfg, is_train, hidden)
    write_panoptic_png(path, np.zeros((60, 91), int))
    with pytest.raises(ValueError, match="the labels have 91x60 pixels, but the image .* 90x60"):
        mapped(PanopticDatasetMapper, cfg, is_train, panoptic_record)


@pytest.fixture(params=[torch.uint8, torch.int32])
def pair(request):
    """Return seven masks, including an empty mask, and Detectron2's masks of the same objects."""
    torch.manual_seed(0)
    places = torch.randint(0, 9, (10, 15)).repeat_interleave(4, 0).repeat_interleave(4, 1)
    segments = torch.tensor([8, 3, 1, 200, 5, 2, 7])
    theirs = BitMasks(places == segments[:, None, None])
    return SegmentMasks(places.to(request.param), segments.to(request.param)), theirs


@pytest.mark.parametrize(
    "item",
    [
        ...,
        3,
        slice(1, 5),
        torch.tensor([True, False] * 3 + [True]),
        torch.tensor([6, 0, 0, 2]),  # fewer rows than segments
        torch.arange(40) % 7,  # more rows
        torch.zeros(0, dtype=torch.long),
    ],
)
def test_masks_equal_detectron2s(pair, item):
    ours, theirs = pair if item is ... else (masks[item] for masks in pair)
    assert len(ours) == len(theirs) and ours.image_size == theirs.image_size
    assert torch.equal(ours.tensor, theirs.tensor)
    assert torch.equal(ours.nonempty(), theirs.nonempty())
    assert torch.equal(ours.get_bounding_boxes().tensor, theirs.get_bounding_boxes().tensor)
    corners = torch.rand(len(ours), 2) * 30
    boxes = torch.cat([corners, corners + 1 + torch.rand(len(ours), 2) * 29], dim=1)
    crops = ours.crop_and_resize(boxes, 14)
    assert torch.equal(crops, theirs.crop_and_resize(boxes, 14))
    assert crops.any() or len(ours) <= 1


def test_masks_of_instances(pair):
    ours, theirs = pair
    instances = Instances((40, 60), gt_masks=ours, gt_boxes=Boxes(torch.zeros(7, 4)))
    sent = pickle.loads(pickle.dumps(instances[torch.tensor([2, 2, 6])].to("cpu")))
    assert torch.equal(sent.gt_masks.tensor, theirs.tensor[[2, 2, 6]])
    assert [mask.shape for mask in sent.gt_masks] == [(40, 60)] * 3
    joined = Instances.cat([instances, sent]).gt_masks.tensor
    assert torch.equal(joined, torch.cat([theirs.tensor, theirs.tensor[[2, 2, 6]]]))
