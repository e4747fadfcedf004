"""From the command line to registered data: splits, repetition, interruption, refusals."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic import cli
from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.semantic.label_space import parse_label_space
from ocr_panoptic.formats.labels import read_label_image, write_label_png
from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment
from ocr_panoptic.workbench.importing.import_plan import above_labels, split_images
from ocr_panoptic.workbench.importing.masks import mask_of_pixels
from support import annotation_files as files
from support.annotation_files import coco, save
from support.imported import FIXTURES, SCENES, stuff_labels

pytestmark = pytest.mark.usefixtures("clean_catalog")

THINGS = "things: [ball, crate, tent, starfish]\nstuff: [sky, forest, water, sand, grass]\n"
POLYGONS = FIXTURES / "coco_polygons/annotations.json"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def things(tmp_path) -> Path:
    return save(tmp_path / "things.yaml", THINGS)


@pytest.fixture
def voc(tmp_path) -> Path:
    """Return VOC data with images in the usual place, so that no folder of images is needed."""
    shutil.copytree(FIXTURES / "voc", tmp_path / "voc")
    shutil.copytree(SCENES / "images", tmp_path / "voc/JPEGImages")
    return tmp_path / "voc"


@pytest.fixture
def city(voc, things) -> tuple:
    return ("--from", "voc", "--name", "city", "--train", voc, "--things", things)


def run(*arguments: object) -> None:
    cli.call("import", [*map(str, arguments), "--workers", "1"])


def run_coco(*arguments: object) -> None:
    run("--from", "coco", "--name", "city", "--train", *arguments)


def contents(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def test_a_split_of_one_source(root, voc, city, capsys):
    run(*city, "--split", "0.6")
    assert "Data sets: city_train, city_val" in capsys.readouterr().out
    register_data_sets([], ["city_train", "city_val"])
    files = {s: [Path(r["file_name"]).name for r in DatasetCatalog.get(f"city_{s}")] for s in SPLIT}
    assert files == SPLIT
    metadata = MetadataCatalog.get("city_train")
    assert metadata.thing_classes == ["ball", "crate", "tent", "starfish"]
    assert metadata.stuff_classes == ["things", "sky", "forest", "water", "sand", "grass"]
    image = root / f"city/raw/val/images/{SPLIT['val'][0]}"
    assert image.is_symlink() and image.samefile(voc / "JPEGImages" / image.name)


SPLIT = {"train": ["train_00000.jpg", "train_00007.jpg"], "val": ["train_00002.jpg"]}


def names(images: list[AnnotatedImage]) -> list[str]:
    return [image.name for image in images]


def test_divided_images():
    frames = [
        AnnotatedImage(None, f"{folder}/{video}_{frame:03}.jpg", 4, 4)
        for folder, count in (("east", 3), ("west", 5))
        for video in "abcde"
        for frame in range(count)
    ]
    found = split_images(frames, 0.8)
    assert {split: len(images) for split, images in found.items()} == {"train": 32, "val": 8}
    assert sorted(names(found["train"]) + names(found["val"])) == sorted(names(frames))
    assert split_images(frames[::-1], 0.8) == found
    # With another rule, users' images would change sides.
    assert names(split_images(frames, 0.9)["val"]) == [
        *("east/d_002.jpg", "west/a_002.jpg", "west/e_003.jpg", "west/e_004.jpg")
    ]
    assert all(all(split_images(frames[:2], share).values()) for share in (0.01, 0.99))
    with pytest.raises(ValueError, match="at least 2 images are needed, found 1"):
        split_images(frames[:1], 0.5)


def test_a_repetition_and_an_interruption(root, voc, city, monkeypatch):
    """Equal sources give equal files, whatever existed before; an incomplete import leaves none."""
    run(*city)
    expected = contents(root)
    run(*city, "--split", "0.6")
    for place in ("draw_split", "write_data_file"):
        with monkeypatch.context() as patch:
            patch.setattr(
                f"ocr_panoptic.workbench.importing.importing.{place}",
                lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt),
            )
            with pytest.raises(KeyboardInterrupt):
                run(*city)
        assert (root / "city/city.yaml").exists() == (place == "draw_split")
    run(*city)
    assert contents(root) == expected


def test_foreign_files_are_not_changed(root, city):
    (root / "city/raw").mkdir(parents=True)
    (root / "city/raw/mine.txt").touch()
    with pytest.raises(ValueError, match="raw: exists, but was not written by an import"):
        run(*city)
    assert contents(root) == {"city/raw/mine.txt": b""}
    (root / "city/raw/mine.txt").unlink()
    (root / "city/city.yaml").touch()
    with pytest.raises(ValueError, match="city.yaml: exists, but was not written by an import"):
        run(*city)


def test_a_semantic_data_set_with_rest(root, voc):
    run(*("--from", "voc", "--name", "town", "--train", voc, "--semantic", "--rest", "other"))
    register_data_sets([], ["town_train"])
    classes = MetadataCatalog.get("town_train").stuff_classes
    assert classes == sorted(classes[:-1]) + ["other"] and len(classes) == 10
    labels = read_label_image(root / "town/raw/train/semantic/train_00000.png")
    assert (labels == 9).any() and not (labels == 255).any()


def test_coco_over_label_pngs(root, tmp_path):
    classes = stuff_labels(tmp_path / "labels")
    save(tmp_path / "classes.yaml", f"classes: [{', '.join(classes)}]")
    source = (FIXTURES / "coco/annotations/instances_train.json", SCENES / "images")
    given = (*source, tmp_path / "labels", "--label-classes", tmp_path / "classes.yaml")
    run_coco(*given, "--crowds", "objects")
    record = json.loads((root / "city/raw/import.json").read_text())
    assert (record["things"], sorted(record["stuff"])) == (
        ["ball", "crate", "starfish", "tent"],
        ["forest", "grass", "sand", "sky", "water"],
    )
    assert record["counts"]["train"]["cut"] == {"sky": 3}  # which lies below things
    with pytest.raises(FileNotFoundError, match="nowhere: folder of label PNGs not found"):
        run_coco(*source, tmp_path / "nowhere", *given[3:])
    Image.new("L", (64, 63)).save(tmp_path / "labels/train_00000.png")
    with pytest.raises(DataFaults, match="train_00000.png: the label PNG has 64x63 pixels, but"):
        run_coco(*given, "--crowds", "objects")


def test_label_pngs_lie_below(tmp_path):
    labels = np.zeros((4, 4), np.uint8)
    labels[0] = 255
    write_label_png(tmp_path / "a.png", labels)
    image = AnnotatedImage(None, "a.jpg", 4, 4, [Segment("car", mask_of_pixels(labels == 0))])
    found = above_labels(image, tmp_path, parse_label_space({"classes": ["sky", "sea"]}, "x"))
    assert [segment.label for segment in found.segments] == ["sky", "car"]
    assert np.array_equal(found.segments[0].pixels(), labels == 0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--split", "0.5", "--val", "VOC"], "Give --split or --val"),
        (["--split", "1.5"], "--split is 1.5; expected a training share between 0 and 1"),
        (["--polygons", "edges"], "--polygons .*voc"),
        (["--label-classes", "THINGS"], r'expected "classes:"'),
        (["--val", "VOC"], "train_00000.jpg: the image is in train and val"),
        (["--rest", "ball"], "--rest ball: expected a stuff class"),
        (["--name", "../x"], r"the name is '\.\./x'; expected only letters"),
        (["--train", "a", "b", "c", "d"], "expected SOURCE .IMAGES .LABELS.., found 4 paths"),
        (["--train", "VOC", "IMAGES", "LABELS"], "For label PNGs, give their"),
    ],
)
def test_options_that_contradict(root, voc, city, things, arguments, message):
    places = {"VOC": voc, "THINGS": things, "IMAGES": SCENES / "images", "LABELS": voc}
    with pytest.raises(ValueError, match=message):
        run(*city, *(places.get(argument, argument) for argument in arguments))
    assert not root.exists()


def test_a_rest_class_need_not_be_annotated(root, caplog):
    run_coco(POLYGONS, SCENES / "images", "--rest", "ground")
    assert "have no annotations" not in caplog.text


def test_the_same_image_in_both_splits(root, voc, tmp_path):
    """Files identify images: another file of the same name is another image."""
    content = json.loads(POLYGONS.read_text())
    for image in content["images"]:
        image["file_name"] = f"images/{image['file_name']}"
    save(tmp_path / "val.json", content)
    given = (POLYGONS, SCENES / "images", "--val")
    with pytest.raises(DataFaults, match="train_00000.jpg: the image is in train and val"):
        run_coco(*given, tmp_path / "val.json", SCENES)
    run_coco(*given, POLYGONS, voc / "JPEGImages")
    assert (root / "city/city.yaml").exists()


@pytest.mark.parametrize(
    "image_names, class_name, message",
    [
        (("train_00000.jpg",) * 2, "a", "2 images are named train_00000.jpg"),
        (("train_00000.jpg",), "a\nb", r"class 'a\\nb': the name must not contain"),
        (("train_00000.jpg",), None, "class None: the name must be a non-empty string"),
        ((), "a", "coco.json: no image has annotations"),
    ],
)
def test_names(root, voc, image_names, class_name, message):
    shapes = [{"segmentation": [[1, 1, 9, 1, 9, 9]]}] * bool(image_names)
    content = coco(*shapes, size=(64, 64), names=image_names, classes=(class_name,))
    save(voc / "coco.json", content)
    with pytest.raises(DataFaults, match=message):
        run_coco(voc / "coco.json", voc / "JPEGImages")
    assert not root.exists()


def test_a_split_of_void(root, voc, things):
    """If a split cannot be used for training or evaluation, no split is written."""
    lists = voc / "ImageSets/Segmentation"
    for file, name in (("val.txt", "train_00000"), ("train.txt", "train_00002")):
        (lists / file).write_text(name)
    Image.new("RGB", (64, 64)).save(voc / "SegmentationClass/train_00000.png")
    with pytest.raises(DataFaults, match="val: all pixels are void, because no image"):
        run(
            *("--from", "voc", "--name", "city", "--things", things),
            *("--train", lists / "train.txt", "--val", lists / "val.txt"),
        )
    assert not list((root / "city").iterdir())


def test_boxes_points_and_missing_stuff_are_reported(root, tmp_path, caplog):
    box = {"label": "cat", "shape_type": "rectangle", "points": [[0, 0], [3, 7]]}
    line = {"label": "lane", "shape_type": "line", "points": [[0, 0], [9, 7]]}
    save(tmp_path / "l/a.json", {"imagePath": "a.png", "shapes": [box, box, line]})
    save(tmp_path / "l/settings.json", {"theme": "dark"})
    Image.new("RGB", (20, 8)).save(tmp_path / "l/a.png")
    kinds = save(tmp_path / "kinds.yaml", "things: [cat]")
    run("--from", "labelme", "--name", "x", "--train", tmp_path / "l", "--things", kinds)
    for message in (
        "left out 1 of 2 JSON files, because they are not LabelMe files: settings.json",
        "train: 2 box(es), which few objects fill",
        "train: 1 shape(s) left out, without area: line (1)",
        "There are no stuff classes",
    ):
        assert message in caplog.text
    counts = json.loads((root / "x/raw/import.json").read_text())["counts"]["train"]
    assert (counts["boxes"], counts["left out"]) == ({"cat": 2}, {"line": 1})


@pytest.mark.parametrize(
    ("options", "things", "pixels"),
    [
        ((), "things: [cell]", {"cell": 32}),
        (("--rest", "air"), "{things: [cell]}", {"cell": 32, "air": 96}),
        (
            ("--rest", "air"),
            "{things: [cell], stuff: [air, _background_, __ignore__]}",
            {"cell": 32, "air": 64, "_background_": 32, "__ignore__": 32},
        ),
    ],
)
def test_labelmes_predefined_classes(root, tmp_path, options, things, pixels):
    """__ignore__ is void and _background_ is the rest, unless the user says otherwise."""
    shapes = [
        {"label": label, "points": [[x, 0], [x + 3, 0], [x + 3, 7], [x, 7]]}
        for x, label in ((0, "cell"), (4, "_background_"), (8, "__ignore__"))
    ]
    save(tmp_path / "l/a.json", {"imagePath": "a.png", "shapes": shapes})
    Image.new("RGB", (20, 8)).save(tmp_path / "l/a.png")
    kinds = save(tmp_path / "kinds.yaml", things)
    run("--from", "labelme", "--name", "x", "--train", tmp_path / "l", "--things", kinds, *options)
    (split,) = check_data([root / "x/x.yaml"], workers=1).splits
    assert {c.name: c.pixels for c in split.classes} == pixels


@pytest.mark.parametrize("format", ["coco", "cvat"])
def test_kinds_are_asked_for_before_pixels_are_read(root, tmp_path, things, monkeypatch, format):
    write = {"coco": files.coco_polygons, "cvat": files.cvat}[format]
    source, images = write(tmp_path, {"a.png": files.SCENES["a.png"]})
    Image.new("RGB", files.SIZE[::-1]).save(tmp_path / "a.png")
    monkeypatch.delattr(f"ocr_panoptic.workbench.importing.{format}.mask_of_polygons")
    given = ("--things", things) if format == "coco" else ()
    with pytest.raises(ValueError, match=r"car\W+1 segments in 1 images(.|\n)*--things"):
        run("--from", format, "--name", "x", "--train", source, tmp_path, *given)


def test_a_folder_of_roboflow_with_one_split(root, tmp_path):
    """Its JSON repeats a name, as a category without annotations."""
    names = {"names": ("a.png", "b.png"), "classes": ("roof", "roof")}
    content = coco({"segmentation": [[0, 0, 9, 0, 9, 9]]}, size=(16, 16), **names)
    save(tmp_path / "export/train/_annotations.coco.json", content)
    for name in names["names"]:
        Image.new("RGB", (16, 16)).save(tmp_path / "export/train" / name)
    run_coco(tmp_path / "export", "--rest", "ground", "--split", "0.5")
    run_coco(tmp_path / "export/train", "--rest", "ground")
    assert json.loads((root / "city/raw/import.json").read_text())["things"] == ["roof"]
