"""Habits of tools: crowds, half pixels, splits, names of uploads."""

import json
import logging
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.data_file import read_data_file
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.import_plan import AnnotationSource, ImportPlan
from ocr_panoptic.workbench.importing.importing import import_annotations
from ocr_panoptic.workbench.importing.kinds import Kinds
from support.annotation_files import coco, run_lengths, save
from support.imported import as_set, read_maps, run_import

pytestmark = pytest.mark.usefixtures("clean_catalog")

SIZE = H, W = 40, 48
KINDS = Kinds(("dog",), ("sky",))


def mask(*boxes: tuple[int, int, int, int]) -> np.ndarray:
    pixels = np.zeros(SIZE, bool)
    for top, bottom, left, right in boxes:
        pixels[top:bottom, left:right] = True
    return pixels


SIMPLE, PARTS = mask((2, 9, 3, 12)), mask((20, 26, 5, 12), (30, 37, 8, 20))
RING = mask((4, 16, 24, 40)) & ~mask((8, 11, 29, 34))


def as_supervision(pixels: np.ndarray) -> dict:
    """Return an annotation like supervision's: one outline is a polygon, several are a crowd."""
    outlines, levels = cv2.findContours(
        pixels.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE
    )
    is_crowd = len(outlines) > 1
    shape = run_lengths(pixels) if is_crowd else [outlines[0].ravel().tolist()]
    return {"iscrowd": int(is_crowd), "segmentation": shape}


def dogs(*annotations: dict, info: str = "", name: str = "a.png") -> dict:
    return coco(*annotations, size=SIZE, names=(name,), info={"description": info})


def shade(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (W, H), value).save(path)


@pytest.fixture
def images(tmp_path) -> Path:
    shade(tmp_path / "images/a.png")
    return tmp_path / "images"


@pytest.fixture
def load(tmp_path, images, caplog):
    """Return a function that imports a COCO JSON and returns the regions of a.png."""

    def load(content: dict, **options: object) -> list:
        caplog.set_level(logging.INFO)
        source = AnnotationSource(save(tmp_path / "coco.json", content), images)
        return run_import(tmp_path, source, ImportPlan("coco", KINDS, **options))["a"]

    return load


@pytest.mark.parametrize("number", ["1", 1.0])
def test_ids_of_via_are_texts_and_ids_of_pandas_are_floats(load, number):
    content = dogs(as_supervision(SIMPLE))
    content["annotations"][0] |= {"image_id": number, "category_id": number}
    (region,) = load(content, polygons="centres")
    assert np.array_equal(region.pixels, SIMPLE)


def test_annotations_of_other_images_are_left_out(load, caplog):
    with pytest.raises(ValueError, match="No image has any segments"):
        load(dogs(as_supervision(SIMPLE) | {"image_id": 7}))
    assert 'left out 1 of 1 annotations, because their image_id is not in "images"' in caplog.text


@pytest.mark.parametrize("shape", [PARTS, RING], ids=["parts", "hole"])
def test_crowds_that_may_be_objects_are_refused(load, shape):
    """This holds even for a single crowd in an image, if the class has other objects."""
    content = dogs(as_supervision(SIMPLE), as_supervision(shape))
    with pytest.raises(ValueError, match="1 of 2 objects .* --crowds"):
        load(content)
    found = load(content, crowds="objects", polygons="centres")
    assert as_set(found) == {("dog", True, False, p.tobytes()) for p in (SIMPLE, shape)}


def test_centres_of_pixels(load, caplog):
    """A tool named in "info" gives a hint, unless the user chooses."""
    content = dogs(as_supervision(SIMPLE), info="Exported from roboflow.com")
    (region,) = load(content)
    assert region.pixels.sum() == 8 * 6 and SIMPLE.sum() == 9 * 7
    assert "exported by Roboflow" in caplog.text and "--polygons centres" in caplog.text
    caplog.clear()
    (region,) = load(content, polygons="centres")
    assert np.array_equal(region.pixels, SIMPLE) and "roboflow" not in caplog.text.lower()


@pytest.mark.parametrize("format", ["via", "label-studio", "yolo-seg"])
def test_polygons_through_centres_are_named(tmp_path, images, caplog, format):
    """Programs trace masks, and may write the polygons with few digits."""
    disc = cv2.circle(np.zeros((H, W), np.uint8), (W // 2, H // 2), 8, 1, -1)
    ((corners,), _) = cv2.findContours(disc, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    x, y = corners[:, 0].T.tolist()
    shape = {"name": "polygon", "all_points_x": x, "all_points_y": y}
    place = {"shape_attributes": shape, "region_attributes": {"class": "dog"}}
    points = [(100 * a / W, 100 * b / H) for a, b in zip(x, y, strict=True)]
    result = {"type": "polygonlabels", "original_height": H, "original_width": W}
    result["value"] = {"points": points, "polygonlabels": ["dog"]}
    task = {"data": {"image": "a.png"}, "annotations": [{"id": 1, "result": [result]}]}
    shares = " ".join(f"{a / W:.2f} {b / H:.2f}" for a, b in zip(x, y, strict=True))
    save(tmp_path / "labels/a.txt", f"0 {shares}")
    contents = {"via": {"a": {"filename": "a.png", "regions": [place]}}, "label-studio": [task]}
    contents["yolo-seg"] = {"names": ["dog"]}
    source = AnnotationSource(save(tmp_path / "source.json", contents[format]), images)
    for polygons in (None, "edges", "centres"):
        caplog.clear()
        (region,) = run_import(tmp_path, source, ImportPlan(format, KINDS, polygons=polygons))["a"]
        assert np.array_equal(region.pixels, disc > 0) == (polygons == "centres")
        assert ("1 polygon(s) through pixel centres" in caplog.text) == (not polygons)


def test_other_crowds_are_accepted(load, caplog, tmp_path):
    """Objects in several parts show that crowds are crowds, except in exports of V7."""
    several = as_supervision(SIMPLE)
    several["segmentation"] *= 2
    load(dogs(several))
    assert "crowd" not in caplog.text
    found = load(dogs(several, as_supervision(PARTS)))
    assert sorted(region.is_crowd for region in found) == [False, True]
    assert "train: 1 crowd(s), which are not used for training: dog (1)" in caplog.text
    counts = json.loads((tmp_path / "scenes/raw/import.json").read_text())["counts"]["train"]
    assert (counts["things"], counts["crowds"]) == ({"dog": 2}, {"dog": 1})
    with pytest.raises(ValueError, match="1 of 2 objects are marked as crowds"):
        load(dogs(several, as_supervision(PARTS), info="Exported from Darwin"))


@pytest.mark.parametrize(
    ("written", "places", "found"),
    [
        ("sub\\a.png", ["sub/a.png"], "sub/a.png"),
        ("C:\\Users\\Jörg\\a.png", ["a.png", "x/a.png"], "a.png"),
        ("/home/me/set/x/a.png", ["x/a.png", "y/a.png"], "x/a.png"),
        ("../images/a.png", ["a.png"], "a.png"),
        ("http://host/set/a.png", ["a.png"], "a.png"),
        ("a.png", ["deep/below/a.png"], "deep/below/a.png"),
        ("A.PNG", ["a.png"], "a.png"),
        ("Größe/a.png", ["Gro\u0308\u00dfe/a.png"], "Gro\u0308\u00dfe/a.png"),
        # Label Studio's brush export has the names of its own copies.
        ("1a2b3c4d-a.png", ["a.png"], "a.png"),
        ("sub/1a2b3c4d-a.png", ["sub/a.png", "x/a.png"], "sub/a.png"),
        ("1a2b3c4d-b.png", ["a.png"], "1a2b3c4d-b.png not found. Is "),
        ("z/a.png", ["x/a.png", "y/a.png"], "not found. Which of 2 .* x/a.png, y/a.png"),
        ("b.png", ["a.png"], "b.png not found. Is "),
    ],
)
def test_names_from_another_machine(load, images, caplog, written, places, found):
    """The only file with a matching end is taken, and another path is reported."""
    (images / "a.png").rename(images / "spare")
    for place in places:
        (images / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(images / "spare", images / place)
    content = dogs(as_supervision(SIMPLE), name=written)
    if "not found" in found:
        with pytest.raises(DataFaults, match=found):
            load(content)
        return
    load(content)
    link = images.parent / "scenes/raw/train/images" / found
    assert link.resolve() == (images / found).resolve()
    is_other = written.replace("\\", "/").casefold() != found.casefold() and "ß" not in found
    assert ("paths other than" in caplog.text) == (is_other and "1a2b3c4d-" not in written)


def maps_of(file: Path) -> dict[str, dict[str, list]]:
    splits = read_data_file(file).splits
    return {name: read_maps(split.annotations, split.segments) for name, split in splits.items()}


def test_roboflows_splits_are_used(tmp_path, caplog):
    source, names = tmp_path / "export", ("train", "valid", "test")
    for value, name in enumerate(names):
        shade(source / name / f"{name}.png", value)
        content = dogs(as_supervision(SIMPLE), name=f"{name}.png")
        save(source / name / "_annotations.coco.json", content)
    plan, out = ImportPlan("coco", KINDS, polygons="centres"), tmp_path / "out"
    with caplog.at_level(logging.INFO):
        file = import_annotations("dogs", {"train": AnnotationSource(source)}, plan, out)
    assert "using the splits of the annotations: train, val, test" in caplog.text
    found = maps_of(file)
    expected = {"train": ["train"], "val": ["valid"], "test": ["test"]}
    assert {split: list(maps) for split, maps in found.items()} == expected
    for maps in found.values():
        ((region,),) = maps.values()
        assert np.array_equal(region.pixels, SIMPLE)
    one = {"train": AnnotationSource(source / "train"), "val": AnnotationSource(source / "valid")}
    assert maps_of(import_annotations("two", one, plan, tmp_path / "two")).keys() == one.keys()


@pytest.mark.parametrize("format", ["coco", "yolo-seg"])
def test_an_empty_split_of_roboflow_is_left_out(tmp_path, caplog, format):
    outline, source = as_supervision(SIMPLE), tmp_path / "export"
    (corners,) = np.reshape(outline["segmentation"], (1, -1, 2))
    shares = " ".join(map(str, (corners / (W, H)).ravel()))
    shade(source / "train/images/a.png")
    save(source / "train/labels/a.txt", f"0 {shares}\n")
    (source / "valid/images").mkdir(parents=True)
    content = dogs(outline, name="images/a.png")
    save(source / "train/_annotations.coco.json", content)
    save(source / "valid/_annotations.coco.json", content | {"images": [], "annotations": []})
    save(source / "data.yaml", "train: ../train/images\nval: ../valid/images\nnames: [dog]\n")
    plan = ImportPlan(format, KINDS, polygons="centres")
    train = AnnotationSource(source / "data.yaml" if format == "yolo-seg" else source)
    found = maps_of(import_annotations("dogs", {"train": train}, plan, tmp_path / "out"))
    assert [*found] == ["train"] and len(found["train"]) == 1
    assert "left out val, which has no images" in caplog.text


@pytest.mark.parametrize("semantic", [False, True])
def test_images_with_the_same_stem(tmp_path, images, semantic):
    shade(images / "a.bmp", 9)
    parts = as_supervision(SIMPLE), as_supervision(RING) | {"image_id": 2}
    content = coco(*parts, size=SIZE, names=("a.png", "a.bmp"))
    source = AnnotationSource(save(tmp_path / "coco.json", content), images)
    plan = ImportPlan("coco", crowds="objects", rest="sky", semantic=semantic)
    file = import_annotations("same", {"train": source}, plan, tmp_path / "out")
    (split,) = check_data(file, workers=1).splits
    pixels = {c.name: c.pixels for c in split.classes}
    names = {path.name for path in (tmp_path / "out/raw/train/images").iterdir()}
    assert names == {"a.png.png", "a.bmp.bmp"}
    assert pixels["dog"] > RING.sum() and sum(pixels.values()) == 2 * H * W


def test_a_new_name_is_not_the_name_of_another_image(tmp_path, images):
    """a.png beside a.bmp would become a.png.png, whose stem a.png.bmp has."""
    names = ("a.png", "a.bmp", "a.png.bmp")
    for name in names[1:]:
        shade(images / name)
    parts = [as_supervision(SIMPLE) | {"image_id": number} for number in (1, 2, 3)]
    content = coco(*parts, size=SIZE, names=names)
    source = AnnotationSource(save(tmp_path / "coco.json", content), images)
    plan = ImportPlan("coco", rest="sky")
    import_annotations("same", {"train": source}, plan, tmp_path / "out")
    found = {path.name for path in (tmp_path / "out/raw/train/images").iterdir()}
    assert found == {"a.png.png.png", "a.bmp.bmp", "a.png.bmp"}


@pytest.mark.parametrize("as_lists", [False, True], ids=["folders", "CVAT's lists"])
def test_splits_of_data_yaml_are_used(tmp_path, as_lists):
    """CVAT's lists name images below a missing folder; a test split may be missing."""
    source = tmp_path / "export"
    outline = as_supervision(SIMPLE)["segmentation"][0]
    shares = " ".join(str(value / (H if at % 2 else W)) for at, value in enumerate(outline))
    for value, split in enumerate(("train", "val")):
        shade(source / f"images/{split}/{split}.png", value)
        save(source / f"labels/{split}/{split}.txt", f"0 {shares}\n")
        above = "data/" * (split == "val")
        save(source / f"{split}.txt", f"{above}images/{split}/{split}.png\n")
    ends = ("train.txt", "val.txt") if as_lists else ("images/train", "images/val")
    text = f"path: ./\ntrain: {ends[0]}\nval: {ends[1]}\ntest: images/test\nnames: {{0: dog}}\n"
    own = {"train": AnnotationSource(save(source / "data.yaml", text))}
    plan = ImportPlan("yolo-seg", KINDS, polygons="centres")
    found = maps_of(import_annotations("dogs", own, plan, tmp_path / "out"))
    assert {split: list(maps) for split, maps in found.items()} == {
        "train": ["train"],
        "val": ["val"],
    }
    assert all(np.array_equal(maps[s][0].pixels, SIMPLE) for s, maps in found.items())
    # If the user divides the images, all are used.
    plan = ImportPlan("yolo-seg", KINDS, split=0.5)
    found = maps_of(import_annotations("both", own, plan, tmp_path / "both"))
    assert sorted(name for maps in found.values() for name in maps) == ["train", "val"]
    # If the user names a folder of images, its images are one split.
    given = {"train": AnnotationSource(source / "data.yaml", source / "images/val")}
    plan = ImportPlan("yolo-seg", KINDS)
    found = maps_of(import_annotations("given", given, plan, tmp_path / "given"))
    assert {split: list(maps) for split, maps in found.items()} == {"train": ["val"]}


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("data/a.png", ["data/a.png"]),  # not a.png, which also exists
        ("a.png\nb.png", ["a.png", "b.PNG"]),
        ("a.png\n.", None),
        ("a.png\n/elsewhere/b.png", None),
    ],
)
def test_a_list_of_images(tmp_path, images, listed, found):
    for name in ("b.PNG", "data/a.png"):
        shade(images / name)
    for name in ("a", "b", "data/a"):
        save(tmp_path / f"labels/{name}.txt", "0 0 0 1 0 1 1")
    save(images / "train.txt", listed)
    source = AnnotationSource(save(images / "data.yaml", "train: train.txt\nnames: [dog]"))
    with nullcontext() if found else pytest.raises(DataFaults, match="train.txt: .*'[./]"):
        run_import(tmp_path, source, ImportPlan("yolo-seg", KINDS))
        links = [p for p in (tmp_path / "scenes/raw/train/images").rglob("*") if p.is_symlink()]
        assert sorted(os.path.relpath(p.resolve(), images) for p in links) == found


def test_cvats_xml_with_another_name(tmp_path, images):
    """A width of 0 means that the file does not say it."""
    shape = '<polygon label="dog" points="0,0;8,0;8,8"/>'
    text = f'<annotations><image id="0" name="a.png" width="0" height="{H}">{shape}</image>'
    save(tmp_path / "task_7.xml", f"{text}</annotations>")
    found = run_import(tmp_path, AnnotationSource(tmp_path), ImportPlan("cvat", KINDS))
    assert [region.label for region in found["a"]] == ["dog"]
    (tmp_path / "task_8.xml").touch()
    with pytest.raises(FileNotFoundError, match=r"annotations.xml: file not found. Give the XML"):
        run_import(tmp_path, AnnotationSource(tmp_path), ImportPlan("cvat", KINDS))
