"""COCO's semantic PNGs against a per-segment transcription of Detectron2's rule.

The miniature has the layout, file names and category ids of COCO 2017.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets.builtin import register_all_coco
from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES
from PIL import Image
from scripts import load_script

from ocr_panoptic.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.data import DataFaults, packed_records, prepare_coco_panoptic

# things -> 0, stuff in the order of COCO_CATEGORIES -> 1..53
STUFF = [category["id"] for category in COCO_CATEGORIES if not category["isthing"]]


def expected_labels(png: Path, segments: list[dict]) -> np.ndarray:
    """One segment after the other, from the raw colours."""
    rgb = np.asarray(Image.open(png)).astype(int)
    ids = rgb[..., 0] + 256 * rgb[..., 1] + 65536 * rgb[..., 2]
    labels = np.full(ids.shape, 255)
    for segment in segments:
        category = segment["category_id"]
        labels[ids == segment["id"]] = STUFF.index(category) + 1 if category in STUFF else 0
    return labels


def write_split(coco: Path, split: str, image_ids: list[int]) -> None:
    rng = np.random.default_rng(len(split))
    for folder in ("annotations", f"panoptic_{split}", split):
        (coco / folder).mkdir(parents=True, exist_ok=True)
    images, annotations, instances = [], [], []
    for image_id in image_ids:
        stem, size = f"{image_id:012d}", (28, 40)
        ids = rng.choice(2**24 - 1, len(COCO_CATEGORIES), replace=False) + 1
        # every category and void in every image
        place = rng.permutation(np.resize(np.arange(len(ids) + 1), size).ravel()).reshape(size)
        write_panoptic_png(coco / f"panoptic_{split}" / f"{stem}.png", np.append(ids, 0)[place])
        Image.new("RGB", size[::-1]).save(coco / split / f"{stem}.jpg")
        segments = [
            {"id": int(number), "category_id": category["id"], "iscrowd": 0}
            for number, category in zip(ids, COCO_CATEGORIES, strict=True)
        ]
        images.append({"id": image_id, "file_name": f"{stem}.jpg", "height": 28, "width": 40})
        annotations.append(
            {"image_id": image_id, "file_name": f"{stem}.png", "segments_info": segments}
        )
        box = {"image_id": image_id, "id": image_id, "bbox": [1, 2, 3, 4], "category_id": 1}
        instances.append({**box, "iscrowd": 0, "area": 12, "segmentation": [[1, 2, 4, 2, 4, 6]]})
    things = [{"id": c["id"], "name": c["name"]} for c in COCO_CATEGORIES if c["isthing"]]
    for kind, entries, categories in (
        ("panoptic", annotations, COCO_CATEGORIES),
        ("instances", instances, things),
    ):
        content = {"images": images, "annotations": entries, "categories": categories}
        (coco / "annotations" / f"{kind}_{split}.json").write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path) -> Path:
    write_split(tmp_path / "coco", "train2017", [9, 25, 30])
    write_split(tmp_path / "coco", "val2017", [139, 285, 632])
    return tmp_path


def write_first_of_val(root: Path) -> None:
    """annotations/*_val2017_100.json, which list some images of val2017."""
    for kind in ("panoptic", "instances"):
        content = json.loads((root / f"coco/annotations/{kind}_val2017.json").read_text())
        for key in ("images", "annotations"):
            del content[key][1:]
        (root / f"coco/annotations/{kind}_val2017_100.json").write_text(json.dumps(content))


def assert_split_is_right(root: Path, split: str, pngs: str, num_images: int) -> None:
    content = json.loads((root / f"coco/annotations/panoptic_{split}.json").read_text())
    written = root / "coco" / f"panoptic_stuff_{split}"
    assert len(list(written.iterdir())) == num_images
    for annotation in content["annotations"]:
        with Image.open(written / annotation["file_name"]) as image:
            assert image.mode == "L"
            labels = np.asarray(image)
        png = root / "coco" / pngs / annotation["file_name"]
        assert np.array_equal(labels, expected_labels(png, annotation["segments_info"]))
        assert set(np.unique(labels)) == {*range(54), 255}


def test_all_categories(root):
    write_first_of_val(root)
    assert [folder.name for folder in prepare_coco_panoptic(root, workers=1)] == [
        "panoptic_stuff_train2017",
        "panoptic_stuff_val2017",
        "panoptic_stuff_val2017_100",
    ]
    assert_split_is_right(root, "train2017", "panoptic_train2017", 3)
    assert_split_is_right(root, "val2017", "panoptic_val2017", 3)
    assert_split_is_right(root, "val2017_100", "panoptic_val2017_100", 1)


def test_repeating_and_processes_change_nothing(root):
    def written():
        return {p: p.read_bytes() for p in (root / "coco").rglob("*") if p.is_file()}

    write_first_of_val(root)
    prepare_coco_panoptic(root, workers=1)
    first = written()
    prepare_coco_panoptic(root, workers=2)
    assert written() == first


def test_only_what_has_changed_is_written(root):
    prepare_coco_panoptic(root, workers=1)
    first, second, third = sorted((root / "coco/panoptic_stuff_train2017").iterdir())
    before = first.stat().st_mtime_ns
    content = second.read_bytes()
    second.unlink()
    third.write_bytes(content)
    prepare_coco_panoptic(root, workers=1)
    assert first.stat().st_mtime_ns == before
    assert_split_is_right(root, "train2017", "panoptic_train2017", 3)


def test_detectron2_loads_its_own_data_sets(root, monkeypatch):
    """Its registration, pointed at the miniature, reads what was written."""
    write_first_of_val(root)
    prepare_coco_panoptic(root, workers=1)
    monkeypatch.setattr(DatasetCatalog, "data", {})
    monkeypatch.setattr(MetadataCatalog, "data", {})
    register_all_coco(str(root))
    for name, count in (("train", 3), ("val", 3), ("val_100", 1)):
        records = DatasetCatalog.get(f"coco_2017_{name}_panoptic_separated")
        assert len(records) == count
        for record in records:
            stem = f"{record['image_id']:012d}"
            assert Path(record["sem_seg_file_name"]).name == f"{stem}.png"
            assert len(record["annotations"]) == 1
    metadata = MetadataCatalog.get("coco_2017_val_panoptic_separated")
    labels = {number: label for label, number in enumerate([0, *STUFF])}
    assert metadata.stuff_dataset_id_to_contiguous_id == labels


def test_a_training_starts_from_packed_records(root, monkeypatch):
    """Those of Detectron2's loader, with polygons and the RLE of a crowd; anew where the JSON or
    the list of a folder has changed."""
    path = root / "coco/annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    crowd = {"size": [28, 40], "counts": [100, 20, 1000]}
    content["annotations"][0] |= {"iscrowd": 1, "segmentation": crowd}
    path.write_text(json.dumps(content))
    prepare_coco_panoptic(root, workers=1)
    monkeypatch.setattr(DatasetCatalog, "data", {})
    monkeypatch.setattr(MetadataCatalog, "data", {})
    register_all_coco(str(root))
    name = "coco_2017_train_panoptic_separated"
    for _ in ("written", "read"):
        expected = DatasetCatalog.get(name)
        assert isinstance(expected[0]["annotations"][0]["segmentation"]["counts"], bytes)
        assert list(packed_records([name], False)) == expected
    assert [r["image_id"] for r in packed_records([name], True)] == [25, 30]  # 9 has but a crowd
    content["annotations"][1]["bbox"] = [5, 5, 5, 5]
    path.write_text(json.dumps(content))
    assert list(packed_records([name], False)) == DatasetCatalog.get(name) != expected
    Path(expected[0]["sem_seg_file_name"]).unlink()
    with pytest.raises(KeyError):
        packed_records([name], False)
    assert packed_records(["coco_2017_train"], False) is None


def test_one_split_is_enough(root):
    shutil.rmtree(root / "coco" / "panoptic_train2017")
    (root / "coco/annotations/panoptic_train2017.json").unlink()
    assert [path.name for path in prepare_coco_panoptic(root, 1)] == ["panoptic_stuff_val2017"]


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"panoptic_\{train,val\}2017\.json: neither found"):
        prepare_coco_panoptic(tmp_path)


def test_png_folder_is_not_unpacked(root):
    shutil.rmtree(root / "coco" / "panoptic_val2017")
    with pytest.raises(FileNotFoundError, match=r"Unpack .*/annotations/panoptic_val2017\.zip"):
        prepare_coco_panoptic(root)
    assert not (root / "coco" / "panoptic_stuff_train2017").exists()


def test_missing_pngs_are_all_named(root):
    missing = [root / f"coco/panoptic_train2017/{n:012d}.png" for n in (9, 30)]
    for png in missing:
        png.unlink()
    with pytest.raises(DataFaults) as error:
        prepare_coco_panoptic(root, workers=1)
    assert error.value.faults == [f"{png}: panoptic PNG not found." for png in missing]


def test_broken_pngs_are_all_named(root):
    broken = [root / f"coco/panoptic_train2017/{n:012d}.png" for n in (9, 30)]
    for png in broken:
        png.write_bytes(png.read_bytes()[:200])
    with pytest.raises(DataFaults) as error:
        prepare_coco_panoptic(root, workers=1)
    assert [fault.split(":")[0] for fault in error.value.faults] == [str(png) for png in broken]
    assert not (root / "coco" / "panoptic_stuff_train2017").exists()


def test_categories_of_another_data_set(root):
    path = root / "coco/annotations/panoptic_val2017.json"
    content = json.loads(path.read_text())
    content["categories"][0]["isthing"] = 0
    content["categories"].append({"id": 999, "name": "ufo", "isthing": 1})
    path.write_text(json.dumps(content))
    with pytest.raises(DataFaults) as error:
        prepare_coco_panoptic(root, workers=1)
    assert ["category 1 (" in error.value.faults[0], "999 (" in error.value.faults[1]] == [True] * 2


def test_command(root, monkeypatch, capsys):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(root))
    main = load_script("datasets/prepare_coco_panoptic.py").main
    main(["--workers", "1"])
    assert_split_is_right(root, "val2017", "panoptic_val2017", 3)
    assert str(root / "coco/panoptic_stuff_val2017") in capsys.readouterr().out
    (root / "coco/panoptic_val2017/000000000139.png").unlink()
    with pytest.raises(DataFaults, match="000000000139.png: panoptic PNG not found."):
        main(["--workers", "1"])


@pytest.mark.data
def test_real_coco_images(real_data, tmp_path):
    coco, annotations = tmp_path / "coco", real_data / "panoptic_examples.json"
    (coco / "annotations").mkdir(parents=True)
    shutil.copy(annotations, coco / "annotations/panoptic_val2017.json")
    shutil.copytree(real_data / "panoptic_examples", coco / "panoptic_val2017")
    prepare_coco_panoptic(tmp_path, workers=1)
    for annotation in json.loads(annotations.read_text())["annotations"]:
        png = coco / "panoptic_val2017" / annotation["file_name"]
        labels = np.asarray(Image.open(coco / "panoptic_stuff_val2017" / annotation["file_name"]))
        assert np.array_equal(labels, expected_labels(png, annotation["segments_info"]))
        assert np.array_equal(labels == 255, read_panoptic_png(png) == 0)
