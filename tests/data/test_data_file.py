"""Files that describe data sets: contents, results, and every fault."""

import os
from pathlib import Path

import pytest
import yaml
from detectron2.data import DatasetCatalog

from ocr_panoptic.config.files import load_config
from ocr_panoptic.data.catalog import not_registered, register_data_sets
from ocr_panoptic.data.data_file import data_options, read_data_file, read_data_files
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.places import files_below_root
from support.faults import faults_of
from support.raw_pets import RawData

pytestmark = pytest.mark.usefixtures("clean_catalog")

PANOPTIC = {
    "name": "city",
    "panoptic": {
        "train": {"images": "train/images", "annotations": "train.json", "segments": "train/pngs"},
        "val": {"images": "/elsewhere", "annotations": "val.json", "segments": "val/pngs"},
    },
}
SEMANTIC = {
    "name": "town",
    "semantic": {"train": {"images": "images", "labels": "labels"}},
    "classes": ["road", "sky"],
}


def written(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    file = read_data_file(written(tmp_path / "a.yaml", PANOPTIC))
    assert (file.name, file.kind, file.channels) == ("city", "panoptic", 3)
    assert file.splits["train"].segments == tmp_path / "train/pngs"
    assert file.splits["val"].images == Path("/elsewhere")
    assert file.data_set("val") == "city_val"


def test_options_of_several_files(tmp_path):
    """--data gives absolute paths, which a later command finds from another folder."""
    files = [written(tmp_path / "a.yaml", PANOPTIC), written(tmp_path / "b.yaml", SEMANTIC)]
    cfg = load_config("", data_options(read_data_files([os.path.relpath(file) for file in files])))
    assert tuple(map(str, files)) == cfg.DATASETS.FILES
    assert cfg.DATASETS.TRAIN == ("city_train", "town_train")
    assert cfg.DATASETS.TEST == ("city_val",)
    assert data_options([]) == {}
    written_config = yaml.safe_load(cfg.dump())
    assert written_config["DATASETS"]["FILES"] == list(map(str, files))


SPLIT = {"images": "a", "annotations": 3, "segment": "b"}
CHANGES = [
    ({"name": None}, r"the name is None; expected only letters"),
    ({"name": "../x"}, r"the name is '\.\./x'; expected only letters"),
    ({"nam": "city"}, "the file has the unknown key 'nam'. Did you mean name?"),
    ({"semantic": SEMANTIC["semantic"]}, "the key panoptic or semantic, found both"),
    ({"panoptic": None}, r"panoptic must map splits \(train, val\) to their paths, found None"),
    ({"panoptic": {"a b": PANOPTIC["panoptic"]["val"]}}, "the name is 'a b'; expected only"),
    ({"panoptic": {"train": "x"}}, "panoptic: train must have the keys images, annotations"),
    ({"panoptic": {"train": SPLIT}}, "train has the unknown key 'segment'. Did you mean segments?"),
    ({"channels": 2}, "channels is 2, expected one of 1, 3, 4"),
    ('[{"images": [], "annotations": [], "categories": []}]', "not a data file: the key"),
    ("a: [", "is not valid YAML"),
    ("semantic: {train: {images: a, labels: {stem}}}", 'quotes, such as labels: "masks/{stem}_'),
    ("!!python/object/apply:os.mkdir [harm]", "is not valid YAML"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_faults_of_a_file(tmp_path, change, message):
    content = {**PANOPTIC, **change} if isinstance(change, dict) else change
    path = written(tmp_path / "a.yaml", content)
    with pytest.raises(ValueError, match=message) as error:
        read_data_file(path)
    faults = getattr(error.value, "faults", [str(error.value)])
    assert all(fault.startswith(str(path)) for fault in faults)


def test_all_faults_of_a_file(tmp_path):
    faults = faults_of(read_data_file, written(tmp_path / "a.yaml", {"panoptic": {"train": SPLIT}}))
    assert len(faults) == 4 and all("annotations" in f or "segment" in f for f in faults[2:])


def test_no_file(tmp_path):
    for path in (tmp_path / "a.yaml", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{path}: data file not found"):
            read_data_files([path])


def test_only_splits_in_use_are_read(raw, tmp_path):
    (tmp_path / "gone").mkdir()
    file = raw.described(val=RawData(tmp_path / "gone"))
    (tmp_path / "gone/panoptic.json").unlink()
    names = register_data_sets([file], ["pets_train"])
    assert names == ["pets_train"]
    assert "pets_train" in DatasetCatalog and "pets_val" not in DatasetCatalog
    with pytest.raises(FileNotFoundError, match="gone/panoptic.json: panoptic JSON not found"):
        register_data_sets([file])


def test_several_files_join_if_their_classes_agree(raw, raw_val, tmp_path):
    raw_val.content["categories"].reverse()  # order and colours may differ
    raw_val.content["categories"][0]["color"] = [1, 1, 1]
    files = [raw.described("pets"), raw_val.described("cats")]
    assert register_data_sets(files, same_classes=True) == ["cats_train", "pets_train"]
    assert len(DatasetCatalog.get("pets_train")) == len(DatasetCatalog.get("cats_train")) == 2
    raw_val.content["categories"][0]["name"] = "lion"
    raw_val.content["categories"].append({"id": 40, "name": "snow", "isthing": 0})
    files = [raw.described("pets"), raw_val.described("cats")]
    register_data_sets(files)
    first, second = faults_of(register_data_sets, files, same_classes=True)
    assert first.startswith(f"{raw_val.folder}/cats.yaml: the thing classes of pets_train (")
    assert f"({raw.folder}/pets.yaml) and cats_train differ: 'dog' and 'lion'." in first
    assert "the stuff classes" in second and "differ: '(no class)' and 'snow'." in second


def test_classes_of_the_splits_differ(raw, raw_val):
    raw_val.content["categories"][0]["name"] = "lion"
    with pytest.raises(DataFaults, match="thing classes of pets_train .* and pets_val differ"):
        register_data_sets([raw.described(val=raw_val)])


@pytest.mark.slow
def test_annotations_of_another_split_are_one_fault_for_each_folder(raw, raw_val):
    raw_val.image("first.jpg").rename(raw_val.image("third.jpg"))
    raw_val.image("more/second.bmp").unlink()
    (fault,) = faults_of(raw.checked, val=raw_val)
    folder = raw_val.folder
    lost = f"the JSON lists 2 images, but {folder}/images has none of their files. The first "
    assert (
        fault.startswith(f"{folder}/panoptic.json: {lost}") and "For pets_val, give annot" in fault
    )


def test_names_already_in_use(raw, raw_val):
    with pytest.raises(ValueError, match="Several data files describe pets_train"):
        register_data_sets([raw.described(), raw_val.described()])
    DatasetCatalog.register("taken_train", list)
    with pytest.raises(ValueError, match="the name taken_train is taken by another data set"):
        register_data_sets([raw.described("taken")])


def test_names_are_found_below_the_root(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    RawData(tmp_path / "some").described("my_pets")
    (tmp_path / "some/broken.yaml").write_text("{")
    assert files_below_root(["my_pets_train"]) == [tmp_path / "some/my_pets.yaml"]
    register_data_sets([], ["my_pets_train", "coco_2017_val_panoptic_separated"])
    assert len(DatasetCatalog.get("my_pets_train")) == 2
    (tmp_path / "some").rename(tmp_path / "moved")
    register_data_sets([], ["my_pets_train"])
    record = DatasetCatalog.get("my_pets_train")[0]
    assert record["file_name"] == str(tmp_path / "moved/images/more/second.bmp")
    assert "/pets/pets.yaml (DETECTRON2_DATASETS" in not_registered("pets_train")
    with pytest.raises(ValueError, match="'my_pets_val' is not .* Did you mean my_pets_train"):
        register_data_sets([], ["my_pets_val"])  # the file has no such split
    with pytest.raises(ValueError, match="moved/broken.yaml is not valid YAML"):
        register_data_sets([], ["broken_val"])


def test_a_single_file_and_a_file_named_twice(raw):
    file = str(raw.described())
    assert register_data_sets(file) == register_data_sets([file, file]) == ["pets_train"]
    assert read_data_files(file) == read_data_files([file, file])


def test_names_of_detectron2s_own_data_sets(tmp_path):
    """Training would refuse such a name; a check does not ask Detectron2, which takes seconds."""
    assert {"coco_2017_val", "lvis_v1_train"} <= {*DatasetCatalog.list()}
    (places,) = SEMANTIC["semantic"].values()
    for taken in DatasetCatalog.list():
        name, _, split = taken.partition("_")
        described = SEMANTIC | {"name": name, "semantic": {split: places}}
        with pytest.raises(
            DataFaults, match=f"name '{name}': Detectron2 already has a data set {taken}"
        ):
            read_data_file(written(tmp_path / "a.yaml", described))
    for free in ("coco_2023", "cityscapes_fine_mine", "lvis"):
        assert read_data_file(written(tmp_path / "a.yaml", SEMANTIC | {"name": free})).name == free
