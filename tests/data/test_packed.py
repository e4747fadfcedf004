"""Packed records against Detectron2's own loaders, and packs that must not be used."""

import copy
import os
import pickle
from contextlib import contextmanager

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, get_detection_dataset_dicts
from detectron2.data.datasets import load_coco_json
from detectron2.structures import BoxMode
from raw_pets import CAT

from ocr_panoptic.data import packed, packed_records, prepare_panoptic, register_prepared
from ocr_panoptic.data.packed import _decoded, _encoded, pack_file

pytestmark = pytest.mark.usefixtures("clean_catalog")


@pytest.fixture
def prepare(raw, tmp_path):
    """Prepares and registers ``raw`` as it is now; returns the name."""

    def prepare(name="pets"):
        root = tmp_path / "datasets"
        prepare_panoptic(name, {"train": raw.save().split}, root / name, workers=1)
        register_prepared(root)
        return f"{name}_train"

    return prepare


def pack_of(name):
    return pack_file(name, DatasetCatalog[name])


def records(name, usable=False):
    return list(packed_records([name], usable))


def test_equal_to_detectron2s_records(prepare, raw, tmp_path):
    """The loader of instances is Detectron2's; what is added to it is in test_register."""
    name = prepare()
    for _ in ("written", "read"):
        found = records(name)
        assert found == DatasetCatalog.get(name)
        folder = tmp_path / "datasets" / "pets"
        theirs = load_coco_json(str(folder / "instances_train.json"), str(raw.split.images))
        for record, expected in zip(found, theirs, strict=True):
            for annotation in expected["annotations"]:
                annotation["category_id"] = {4: 0, 9: 1}[annotation["category_id"]]
            assert {key: record[key] for key in expected} == expected
            assert all(type(a["bbox_mode"]) is BoxMode for a in record["annotations"])


def test_images_without_instances_are_left_out_where_asked(prepare, raw, caplog):
    raw.content["annotations"][1]["segments_info"][1]["iscrowd"] = 1  # the only thing of image 5
    name = prepare()
    assert [record["image_id"] for record in records(name)] == [5, 21]
    assert records(name, usable=True) == get_detection_dataset_dicts([name], filter_empty=True)
    assert [record["image_id"] for record in records(name, usable=True)] == [21]


def test_several_data_sets(prepare):
    names = [prepare("pets"), prepare("cats")]
    found = packed_records(names, False)
    assert list(found) == get_detection_dataset_dicts(names, filter_empty=False)
    assert found.wide.tolist() == [r["width"] > r["height"] for r in found]


def test_table_of_instances_is_detectron2s(prepare, monkeypatch):
    """The dog and the cats that are no crowds."""
    shown = []
    for module in ("ocr_panoptic.data.packed", "detectron2.data.build"):
        monkeypatch.setattr(
            f"{module}.print_instances_class_histogram",
            lambda dicts, names: shown.append(
                (
                    np.bincount(
                        [
                            annotation["category_id"]
                            for record in dicts
                            for annotation in record["annotations"]
                            if not annotation.get("iscrowd", 0)
                        ],
                        minlength=len(names),
                    ).tolist(),
                    names,
                )
            ),
        )
    name = prepare()
    packed_records([name], False)
    get_detection_dataset_dicts([name], filter_empty=False)
    assert shown[0] == shown[1] == ([1, 1], ["cat", "dog"])


def test_changed_data_are_packed_anew(prepare, raw):
    name = prepare()
    assert len(records(name)) == 2
    raw.add(8, "8.png", "8.png", np.full((3, 3), 6), [{"id": 6, "category_id": CAT}])
    prepare()
    assert [record["image_id"] for record in records(name)] == [5, 8, 21]


def test_changed_within_size_and_time(prepare):
    """Another content, of another time and the same size."""
    name = prepare()
    before = records(name)
    path = DatasetCatalog[name].files[0]
    path.write_bytes(path.read_bytes().replace(b'"bbox": [1, 1', b'"bbox": [0, 1'))
    after = records(name)
    assert after[1]["annotations"][0]["bbox"] == [0, 1, 4, 3]
    assert after != before and after == DatasetCatalog.get(name)


def test_a_moved_folder_is_packed_anew(prepare, raw, tmp_path):
    name = prepare()
    records(name)
    (tmp_path / "datasets").rename(tmp_path / "elsewhere")
    register_prepared(tmp_path / "elsewhere")
    found = records(name)
    assert found == DatasetCatalog.get(name)
    assert found[0]["sem_seg_file_name"].startswith(str(tmp_path / "elsewhere"))


def test_a_copy_of_the_same_content_needs_no_packing(prepare):
    name = prepare()
    records(name)
    before = pack_of(name).stat().st_mtime_ns
    for path in DatasetCatalog[name].files:
        os.utime(path, ns=(1, 1))
    assert records(name) == DatasetCatalog.get(name)
    assert pack_of(name).stat().st_mtime_ns == before


@pytest.mark.parametrize("size", [0, 10, -1, -30])
def test_a_broken_pack_is_written_anew(prepare, size):
    name = prepare()
    records(name)
    content = pack_of(name).read_bytes()
    pack_of(name).write_bytes(content[:size])
    assert records(name) == DatasetCatalog.get(name)
    assert pack_of(name).read_bytes() == content


def test_any_damaged_byte_is_noticed(prepare):
    """The pack is written anew, or the record is refused."""
    name = prepare()
    expected = records(name)
    content = pack_of(name).read_bytes()
    refused = 0
    for place in range(0, len(content), 17):
        damaged = bytearray(content)
        damaged[place] ^= 1  # a digit becomes another
        pack_of(name).write_bytes(damaged)
        try:
            assert records(name) == expected
        except ValueError as error:
            message = f"{pack_of(name)}: is damaged. Remove it: it is made anew."
            assert str(error) == message
            refused += 1
    assert 0 < refused < len(content) / 17


def test_changed_while_it_is_packed(prepare, monkeypatch):
    name = prepare()
    source = DatasetCatalog[name]

    def changing():
        for record in source.records():
            os.utime(source.files[1], ns=(1, 1))
            yield record

    monkeypatch.setitem(DatasetCatalog.data, name, source._replace(records=changing))
    with pytest.raises(ValueError, match="instances_train.json: .*has changed while it was read"):
        packed_records([name], False)
    assert not list(pack_of(name).parent.glob(".pets*"))


def test_another_process_has_packed_meanwhile(prepare, monkeypatch):
    """One waits for the lock, and reads what the other has written."""
    name = prepare()
    expected = records(name)
    content = pack_of(name).read_bytes()
    pack_of(name).unlink()

    @contextmanager
    def waiting(path, wait):
        assert wait
        pack_of(name).write_bytes(content)
        yield

    monkeypatch.setattr(packed, "locked", waiting)
    monkeypatch.setattr(packed, "_write", None)
    assert records(name) == expected


def test_what_a_killed_process_left(prepare):
    name = prepare()
    folder = pack_of(name).parent
    for left in ("..pets_train.records.0a1b2c3d.tmp", ".pets_train.records.lock"):
        (folder / left).touch()
    records(name)
    assert [path.name for path in folder.glob(".*pets*")] == [pack_of(name).name]


def test_a_missing_json_is_told_once(prepare, caplog):
    """By the loader."""
    name = prepare()
    DatasetCatalog[name].files[0].unlink()
    assert packed_records([name], False) is None
    assert not caplog.records
    with pytest.raises(FileNotFoundError, match="instances_train.json: not found"):
        get_detection_dataset_dicts([name], filter_empty=False)


def test_a_pickle_in_its_place_runs_no_code(prepare, tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    name = prepare()
    pack_of(name).write_bytes(pickle.dumps(Harm()))
    assert records(name) == DatasetCatalog.get(name)
    assert not (tmp_path / "harm").exists()


def test_a_folder_that_cannot_be_written_to(prepare, caplog):
    name = prepare()
    pack_of(name).mkdir()
    assert packed_records([name], False) is None
    assert "Every start reads all of pets_train anew" in caplog.text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('{"images"', '{"images', "is no prepared instance JSON"),
        ('"annotations"', '"others"', "is no prepared instance JSON.*annotations"),
        ('"bbox": [1', '"box": [1', "is no prepared instance JSON.*bbox"),
        ('"image_id": 5', '"image_id": 6', "instances of images that .*_train.json lacks: 6"),
    ],
)
def test_an_instance_json_that_is_not_the_prepared_one(prepare, old, new, message):
    name = prepare()
    path = DatasetCatalog[name].files[0]
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        packed_records([name], False)
    assert not pack_of(name).exists()


def test_data_of_other_code_are_not_packed(prepare):
    name = prepare()
    DatasetCatalog.register("theirs", lambda: [])
    assert packed_records([name, "theirs"], False) is None


def test_masks_as_pycocotools_has_them():
    mask = {"size": [2, 3], "counts": b"11\xff0"}
    annotation = {"bbox_mode": BoxMode.XYXY_ABS, "segmentation": mask}
    record = {"annotations": [annotation, {"bbox_mode": BoxMode.XYWH_ABS}]}
    assert _decoded(_encoded(copy.deepcopy(record))) == record
