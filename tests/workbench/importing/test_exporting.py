import json
from dataclasses import replace

import numpy as np
import pytest
from defusedxml import ElementTree
from pycocotools.coco import COCO

from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment
from ocr_panoptic.workbench.importing.brush import decode_brush
from ocr_panoptic.workbench.importing.exporting import EXPORTS, Project, project_setup, write_export
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from ocr_panoptic.workbench.importing.masks import mask_of_pixels
from support.tool_exports import KINDS, scene

PROJECT = Project({name: (10 * n, 0, 255) for n, name in enumerate(KINDS.classes)})
FILES = {"cvat": "out.xml", "coco": "out.json", "label-studio": "out.json"}


@pytest.fixture
def images(tmp_path) -> list[AnnotatedImage]:
    """Six scenes, the name of one with quotes and signs of XML."""
    images = [scene(seed, tmp_path / "images")[0] for seed in range(6)]
    odd = images[0].file.with_name("0\"'<&>.png")
    return [replace(images[0], file=images[0].file.rename(odd), name=odd.name), *images[1:]]


def accept(path) -> None:
    """Make annotations of the predictions, as a person does who finds nothing to correct."""
    tasks = json.loads(path.read_text())
    for number, task in enumerate(tasks, 1):
        (prediction,) = task["predictions"]
        task["id"], task["annotations"] = number, [{"id": number, "result": prediction["result"]}]
    path.write_text(json.dumps(tasks))


def all_pixels(image: AnnotatedImage) -> list[tuple[str, bytes]]:
    return [(segment.label, segment.pixels().tobytes()) for segment in image.segments]


@pytest.mark.parametrize("kind", EXPORTS)
def test_what_is_written_is_read_again(kind, images, tmp_path):
    path = tmp_path / FILES[kind]
    write_export(kind, images, PROJECT, path)
    if kind == "label-studio":
        accept(path)
    found = list(ANNOTATION_FORMATS[kind].read(path, tmp_path / "images"))
    assert [image.name for image in found] == [image.name for image in images]
    for image, again in zip(images, found, strict=True):
        assert all_pixels(again) == all_pixels(image)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [FILES[kind]]


def small(*segments: tuple[str, list[int], float | None], name: str = "a.png") -> AnnotatedImage:
    """An image of 2 x 4 pixels, with segments of some of them, counted row after row."""
    listed = []
    for label, places, score in segments:
        pixels = np.zeros(8, bool)
        pixels[places] = True
        listed.append(Segment(label, mask_of_pixels(pixels.reshape(2, 4)), score=score))
    return AnnotatedImage(None, name, 2, 4, listed)


DOG = "\"<dog>\" & 'co'"
IMAGE = small(("cat", [1, 2, 5], 0.75), (DOG, [3], None), ("cat", [], 0.5))
CLASSES = Project({"cat": (255, 0, 0), DOG: (0, 128, 255)})


def written(kind, tmp_path, images, project=CLASSES):
    path = tmp_path / FILES[kind]
    write_export(kind, images, project, path)
    return path


def test_cvats_xml(tmp_path):
    meta, image = list(ElementTree.parse(written("cvat", tmp_path, [IMAGE])).getroot())[1:]
    assert [name.text for name in meta.iterfind("task/labels/label/name")] == [*CLASSES.colors]
    assert [image.get(key) for key in ("name", "width", "height")] == ["a.png", "4", "2"]
    cat, dog = image  # what has no pixel is left out: CVAT refuses it
    assert {**cat.attrib} == {
        **dict(label="cat", source="auto", occluded="0", z_order="0", rle="0, 3, 1"),
        **dict(left="1", top="0", width="2", height="2"),
    }
    assert [(part.get("name"), part.text) for part in cat] == [("score", "0.7500")]
    assert (dog.get("label"), dog.get("rle"), dog.get("left")) == (DOG, "0, 1", "3")
    assert len(dog) == 0


def test_cvat_can_take_an_image_by_its_number_of_a_video_alone(tmp_path):
    """CVAT takes the frame of the number where no image has the name."""
    images = [small(name="000007.png"), small(name="000012.png")]
    for frames, expected in ((True, [7, 12]), (False, [10**9, 10**9 + 1])):
        path = written("cvat", tmp_path, images, Project(CLASSES.colors, frames=frames))
        parts = [part for part in ElementTree.parse(path).getroot() if part.tag == "image"]
        assert [int(part.get("id")) for part in parts] == expected


def test_cocos_json(tmp_path, capsys):
    path = written("coco", tmp_path, [small(name="0.png"), IMAGE])
    coco = COCO(str(path))
    names = {1: "cat", 2: DOG}
    assert coco.cats == {n: {"id": n, "name": names[n], "supercategory": ""} for n in names}
    assert coco.imgs[2] == {"id": 2, "file_name": "a.png", "width": 4, "height": 2}
    cat, dog = coco.dataset["annotations"]
    assert (cat["image_id"], cat["category_id"], cat["iscrowd"]) == (2, 1, 0)
    assert (cat["area"], cat["bbox"], cat["score"]) == (3, [1.0, 0.0, 2.0, 2.0], 0.75)
    assert np.flatnonzero(coco.annToMask(cat)).tolist() == [1, 2, 5]
    assert isinstance(cat["segmentation"]["counts"], str)
    assert dog["category_id"] == 2 and "score" not in dog
    crowd = replace(IMAGE, segments=[replace(IMAGE.segments[0], is_crowd=True)])
    (cats,) = json.loads(written("coco", tmp_path, [crowd]).read_text())["annotations"]
    assert cats["iscrowd"] == 1
    assert json.loads(written("coco", tmp_path, []).read_text())["annotations"] == []


def test_label_studios_json(tmp_path):
    names = {"from_name": "brush", "to_name": "picture", "data_key": "photo"}
    url = "https://example.org/"
    project = Project(CLASSES.colors, **names, url_prefix=url, model_version="ocr 1")
    other = small(("cat", [0], None), name="x/ü b.png")
    path = written("label-studio", tmp_path, [IMAGE, other], project)
    first, second = json.loads(path.read_text())
    assert first["data"] == {"photo": "https://example.org/a.png"}
    assert second["data"] == {"photo": "https://example.org/x/%C3%BC%20b.png"}
    (prediction,) = first["predictions"]
    assert (prediction["model_version"], prediction["score"]) == ("ocr 1", 0.75)
    assert "score" not in second["predictions"][0]
    cat, dog = prediction["result"]
    assert cat.pop("id") != dog.pop("id")
    value = cat.pop("value")
    assert decode_brush(value.pop("rle"), 2, 4).ravel().nonzero()[0].tolist() == [1, 2, 5]
    assert value == {"format": "rle", "brushlabels": ["cat"]}
    assert cat == {
        **dict(type="brushlabels", from_name="brush", to_name="picture", score=0.75),
        **dict(original_width=4, original_height=2, image_rotation=0),
    }
    assert dog["value"]["brushlabels"] == [DOG] and "score" not in dog
    assert json.loads(written("label-studio", tmp_path, []).read_text()) == []


def test_the_score_of_a_task_is_the_mean_of_its_pixels(tmp_path):
    image = small(("cat", [0, 1, 2], 0.9), ("cat", [4], 0.1), ("cat", [5], None))
    (task,) = json.loads(written("label-studio", tmp_path, [image]).read_text())
    assert task["predictions"][0]["score"] == pytest.approx((3 * 0.9 + 0.1) / 4)


def test_nothing_is_left_of_a_file_that_could_not_be_finished(tmp_path):
    def images():
        yield IMAGE
        raise OSError("the disk is full")

    for kind in EXPORTS:
        with pytest.raises(OSError, match="full"):
            write_export(kind, images(), CLASSES, tmp_path / FILES[kind])
    assert not list(tmp_path.iterdir())


def test_says_how_to_set_up_the_project():
    labels = json.loads(project_setup("cvat", CLASSES))
    assert {label["name"]: label["color"] for label in labels} == {"cat": "#ff0000", DOG: "#0080ff"}
    config = project_setup("label-studio", CLASSES)
    assert '<Image name="image" value="$image"' in config
    assert '<BrushLabels name="label" toName="image">' in config
    assert '<Label value="cat" background="#ff0000"/>' in config
    assert "<Label value=\"&quot;&lt;dog&gt;&quot; &amp; 'co'\"" in config
