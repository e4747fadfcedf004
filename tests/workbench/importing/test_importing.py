"""From the command line to registered data: splits, repetition, interruption, refusals."""

import json
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import yaml
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.register import register_in_use
from ocr_panoptic.formats.labels import read_label_png
from ocr_panoptic.workbench.importing import import_plan
from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment, SegmentWriter
from ocr_panoptic.workbench.importing.import_plan import AnnotationSource, ImportPlan, read_sources
from ocr_panoptic.workbench.importing.masks import mask_of_pixels
from support.annotation_files import coco
from support.faults import faults_of
from support.imported import FIXTURES, SCENES, stuff_labels
from support.other_process import lock_held
from support.scripts import load_script
from support.tiny_runs import SEMANTIC_CONFIG, TINY_SEMANTIC
from train_net import main as train

pytestmark = pytest.mark.usefixtures("clean_catalog")

THINGS = "things: [ball, crate, tent, starfish]\nstuff: [sky, forest, water, sand, grass]\n"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def things(tmp_path) -> Path:
    (tmp_path / "things.yaml").write_text(THINGS)
    return tmp_path / "things.yaml"


@pytest.fixture
def voc(tmp_path) -> Path:
    """Images in their place, so that no folder of them is given."""
    shutil.copytree(FIXTURES / "voc", tmp_path / "voc")
    shutil.copytree(SCENES / "images", tmp_path / "voc/JPEGImages")
    return tmp_path / "voc"


@pytest.fixture
def city(voc, things) -> tuple:
    """The arguments of an import of all images as city_train."""
    return ("--from", "voc", "--name", "city", "--train", voc, "--things", things)


def run(*arguments: object) -> None:
    script = load_script("datasets/import_annotations.py")
    script.main([*map(str, arguments), "--workers", "1"])


def contents(folder: Path) -> dict[str, object]:
    """Bytes of all files, targets of all links."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def test_a_split_of_one_source(root, voc, city, capsys):
    run(*city, "--split", "0.6", "--group-by", r"_(\d+)")
    assert "Data sets: city_train, city_val" in capsys.readouterr().out
    register_in_use([], ["city_train", "city_val"])
    files = {s: [Path(r["file_name"]).name for r in DatasetCatalog.get(f"city_{s}")] for s in SPLIT}
    assert files == SPLIT
    metadata = MetadataCatalog.get("city_train")
    assert metadata.thing_classes == ["ball", "crate", "tent", "starfish"]
    assert metadata.stuff_classes == ["things", "sky", "forest", "water", "sand", "grass"]
    image = root / "city/raw/val/images/train_00007.jpg"
    assert image.is_symlink() and image.samefile(voc / "JPEGImages/train_00007.jpg")


SPLIT = {"train": ["train_00000.jpg", "train_00002.jpg"], "val": ["train_00007.jpg"]}


def test_what_an_earlier_import_wrote_is_gone(root, voc, city):
    run(*city, "--split", "0.6")
    (voc / "SegmentationClass/train_00000.png").unlink()
    mine = [root / "city/raw" / name for name in ("note.md", "train/images/mine.jpg", "val/a.txt")]
    for path in mine:
        path.touch()
    (root / "city/raw/train/images/.a.jpg.0a1b2c3d.tmp").touch()  # of a killed import
    run(*city)
    for path in mine:
        path.unlink()
    found = {str(path.relative_to(root / "city/raw")) for path in (root / "city/raw").rglob("*.*")}
    names = [
        f"train/{place}.{end}"
        for name in ("train_00002", "train_00007")
        for place, end in ((f"images/{name}", "jpg"), (f"panoptic/{name}", "png"))
    ]
    assert found == {"import.json", "train/panoptic.json", *names}


@pytest.mark.parametrize("place", ["link_images", "write_panoptic_json", "write_data_file"])
def test_an_interrupted_import(root, city, monkeypatch, place):
    run(*city)
    expected = contents(root)
    shutil.rmtree(root)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run(*city, "--rest", "sky")  # an earlier one that came to its end
    with monkeypatch.context() as patch:
        patch.setattr(f"ocr_panoptic.workbench.importing.importing.{place}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(*city)
    assert not (root / "city/city.yaml").exists(), "what is not whole is no data set"
    run(*city)
    assert contents(root) == expected


def test_two_imports_at_once(root, city):
    (root / "city").mkdir(parents=True)
    with (
        lock_held(root / "city/.import.lock"),
        pytest.raises(ValueError, match="city: another process imports data there"),
    ):
        run(*city)


def test_a_semantic_data_set_with_rest(root, voc):
    run(*("--from", "voc", "--name", "town", "--train", voc, "--semantic", "--rest", "other"))
    register_in_use([], ["town_train"])
    classes = MetadataCatalog.get("town_train").stuff_classes
    assert classes == sorted(classes[:-1]) + ["other"] and len(classes) == 10
    labels = read_label_png(root / "town/raw/train/semantic/train_00000.png")
    assert (labels == 9).any() and not (labels == 255).any()


def test_coco_over_label_pngs(root, tmp_path, capsys):
    classes = stuff_labels(tmp_path / "labels")
    (tmp_path / "classes.yaml").write_text(yaml.safe_dump({"classes": classes}))
    source = (FIXTURES / "coco/annotations/instances_train.json", SCENES / "images")
    run(
        *("--from", "coco", "--name", "city", "--train", *source, tmp_path / "labels"),
        *("--label-classes", tmp_path / "classes.yaml", "--crowds", "objects"),
    )
    record = json.loads((root / "city/raw/import.json").read_text())
    assert (record["things"], sorted(record["stuff"])) == (
        ["ball", "crate", "starfish", "tent"],
        ["forest", "grass", "sand", "sky", "water"],
    )
    assert record["losses"]["train"]["cut"] == 0  # labels have void below the objects


def test_faults_are_told_before_anything_is_written(root, voc, city):
    (voc / "JPEGImages/train_00002.jpg").write_bytes(b"\xff\xd8\xff")
    Image.new("RGB", (64, 63)).save(voc / "JPEGImages/train_00000.jpg")
    first, second = faults_of(run, *city)
    assert "is of 64x64 pixels, the image" in first and "broken or truncated" in second
    assert not root.exists()
    # Damage behind its header is found when the image is decoded.
    shutil.copytree(SCENES / "images", voc / "JPEGImages", dirs_exist_ok=True)
    whole = (voc / "JPEGImages/train_00000.jpg").read_bytes()
    (voc / "JPEGImages/train_00000.jpg").write_bytes(whole[:-500])
    with pytest.raises(DataFaults, match="train_00000.jpg: the image is broken or truncated"):
        run(*city)
    assert not root.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--split", "0.5", "--val", "VOC"], "Give --split or --val"),
        (["--group-by", "folder"], "give --split, too"),
        (["--overlap", "area"], "--overlap: the segments of voc do not overlap; leave it out"),
        (["--label-classes", "THINGS"], r'expected "classes:"'),
        (["--val", "VOC"], "train_00000.jpg: is in both train and val"),
        (["--rest", "mud"], "--rest mud: is not in the list stuff of --things"),
        (["--name", "../x"], r"name '\.\./x': use letters"),
        (["--train", "a", "b", "c", "d"], "expected SOURCE .IMAGES .LABELS.., found 4 paths"),
        (["--train", "VOC", "IMAGES", "LABELS"], "belong together: give both or none"),
    ],
)
def test_options_that_do_not_fit(root, voc, things, city, arguments, message):
    places = {"VOC": voc, "THINGS": things, "IMAGES": SCENES / "images", "LABELS": voc}
    with pytest.raises(ValueError, match=message):
        run(*city, *(places.get(argument, argument) for argument in arguments))
    assert not root.exists()


def test_scores_that_are_none_and_a_rest_that_is_not_missed(root, caplog):
    source = (FIXTURES / "coco_polygons/annotations.json", SCENES / "images")
    given = ("--from", "coco", "--name", "city", "--train", *source)
    with pytest.raises(ValueError, match="--overlap score: no annotation has a score"):
        run(*given, "--overlap", "score")
    assert not root.exists()
    run(*given, "--rest", "ground")
    assert "No annotation has" not in caplog.text


def test_one_image_in_both_splits(root, voc, tmp_path):
    """Images are told by their files: another file of the same name is another image."""
    source = FIXTURES / "coco_polygons/annotations.json"
    content = json.loads(source.read_text())
    for image in content["images"]:
        image["file_name"] = f"images/{image['file_name']}"
    (tmp_path / "val.json").write_text(json.dumps(content))
    given = ("--from", "coco", "--name", "city", "--train", source, SCENES / "images", "--val")
    with pytest.raises(DataFaults, match="images/train_00000.jpg: is in both train and val"):
        run(*given, tmp_path / "val.json", SCENES)
    run(*given, source, voc / "JPEGImages")
    assert (root / "city/city.yaml").exists()


def test_two_images_of_one_name(root, voc):
    shutil.copy(voc / "JPEGImages/train_00000.jpg", voc / "JPEGImages/train_00000.jpeg")
    names = ("train_00000.jpg", "train_00000.jpeg")
    (voc / "coco.json").write_text(json.dumps(coco(size=(64, 64), names=names)))
    with pytest.raises(DataFaults, match="2 images are named train_00000, but for their ends"):
        run("--from", "coco", "--name", "city", "--train", voc / "coco.json", voc / "JPEGImages")


def test_a_class_that_no_terminal_shows(root, voc):
    dog = {"segmentation": [[1, 1, 9, 1, 9, 9]], "bbox": [1, 1, 8, 8], "area": 32}
    content = coco(dog, size=(64, 64), names=("train_00000.jpg",), classes=("a\nb",))
    (voc / "coco.json").write_text(json.dumps(content))
    match = r"coco.json: train_00000.jpg: class 'a\\nb': the name must have no control characters"
    with pytest.raises(DataFaults, match=match):
        run("--from", "coco", "--name", "city", "--train", voc / "coco.json", voc / "JPEGImages")


def test_a_split_of_void(root, voc, things, tmp_path):
    """No split is written where one cannot be trained on or evaluated."""
    (voc / "train.json").write_text(json.dumps(coco(size=(64, 64), names=())))
    given = ["--from", "coco", "--name", "city", "--train", voc / "train.json", SCENES / "images"]
    with pytest.raises(DataFaults, match="train.json: no image is annotated"):
        run(*given)
    for file, name in (("val.txt", "train_00000"), ("train.txt", "train_00002")):
        (voc / "ImageSets/Segmentation" / file).write_text(name)
    colors = Image.new("RGB", (64, 64))
    colors.save(voc / "SegmentationClass/train_00000.png")
    lists = voc / "ImageSets/Segmentation"
    with pytest.raises(DataFaults, match="val: no image shows any class, all pixels are void"):
        run(
            *("--from", "voc", "--name", "city", "--things", things),
            *("--train", lists / "train.txt", "--val", lists / "val.txt"),
        )
    assert not list(root.rglob("*.json"))


def test_files_of_others_are_left_alone(root, city):
    (root / "city/raw").mkdir(parents=True)
    (root / "city/raw/mine.txt").touch()
    with pytest.raises(ValueError, match="raw: no import wrote it"):
        run(*city)
    assert contents(root) == {"city/raw/mine.txt": b""}
    (root / "city/raw/mine.txt").unlink()
    run(*city)
    before = contents(root)
    with pytest.raises(ValueError, match="city.yaml: is of another kind of data set"):
        run(*city, "--semantic")
    assert contents(root) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_training_and_evaluation(root, city, make_args, tmp_path, kind):
    """An imported data set is trained on for two iterations and evaluated."""
    run(*city, "--split", "0.6", *(["--semantic"] if kind == "semantic" else []))
    options = ["SOLVER.MAX_ITER", 2, "SOLVER.STEPS", "()"]
    names = ["DATASETS.TRAIN", "('city_train',)", "DATASETS.TEST", "('city_val',)"]
    if kind == "semantic":
        train(make_args(*TINY_SEMANTIC, *options, *names, config=SEMANTIC_CONFIG))
    else:
        train(make_args(*options, *names))
    metrics = json.loads((tmp_path / "run/inference/city_val/metrics.json").read_text())
    key = {"panoptic": ("panoptic_seg", "PQ_st"), "semantic": ("sem_seg", "mIoU")}[kind]
    assert 0 <= metrics[key[0]][key[1]] <= 100
    names = MetadataCatalog.get("city_val").stuff_classes
    assert {f"IoU-{name}" for name in names} <= metrics["sem_seg"].keys()


NOISE = np.random.default_rng(0).random((60, 30, 400)) < 0.5


def test_what_is_stored_is_what_is_read(tmp_path):
    first = Segment("é", mask_of_pixels(NOISE[0]), True, is_crowd=True, score=0.1 + 0.2)
    images = [[first], [], [Segment("b", mask_of_pixels(NOISE[1])), first]]
    with SegmentWriter(tmp_path / "a/file") as writer:
        stored = [writer.add(segments, (30, 400)) for segments in images]
    for _ in range(2):
        assert [list(segments) for segments in stored] == images


def test_memory_holds_those_of_one_image(tmp_path, monkeypatch):
    """Sixty images have 6 kB of runs each."""

    def read(source, images):
        for number, pixels in enumerate(NOISE):
            segments = [Segment("cat", mask_of_pixels(pixels), True)]
            yield AnnotatedImage(tmp_path / str(number), f"{number}.png", 30, 400, segments)

    row = import_plan.ANNOTATION_FORMATS["labelme"]._replace(read=read)
    monkeypatch.setitem(import_plan.ANNOTATION_FORMATS, "labelme", row)
    tracemalloc.start()
    images, found = read_sources(
        {"train": AnnotationSource(tmp_path)}, ImportPlan("labelme"), tmp_path
    )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["cat"].images == len(images["train"]) == 60
    masks = [segment.mask for image in images["train"] for segment in image.segments]
    assert 2 * held < sum(len(mask["counts"]) for mask in masks)
    assert len(masks) == 60
