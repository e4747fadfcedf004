"""Whole imports of scenes that tools and the formats' own libraries have written."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.data_file import read_data_file
from ocr_panoptic.data.semantic.label_space import parse_label_space
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.labels import read_label_image
from ocr_panoptic.workbench.importing.import_plan import AnnotationSource, ImportPlan
from ocr_panoptic.workbench.importing.importing import import_annotations
from support.annotation_files import coco, run_lengths
from support.imported import (
    FIXTURES,
    SCENES,
    Region,
    as_set,
    iou,
    read_maps,
    run_import,
    scenes,
    stuff_labels,
)
from support.tool_exports import EXPORTS, IMAGES, KINDS

pytestmark = pytest.mark.usefixtures("clean_catalog")


def above_stuff(tmp_path, format: str, source: Path, images: Path, **options):
    classes = stuff_labels(tmp_path / "labels")
    space = parse_label_space({"classes": classes}, "classes")
    source = AnnotationSource(source, images, tmp_path / "labels")
    return run_import(tmp_path, source, ImportPlan(format, label_space=space, **options))


def coco_instances() -> dict:
    objects = [
        {
            "image_id": number,
            "category_id": KINDS.things.index(region.label) + 1,
            "iscrowd": int(region.is_crowd),
            "segmentation": run_lengths(region.pixels),
        }
        for number, regions in enumerate(scenes().values(), 1)
        for region in regions
        if region.is_thing
    ]
    names = tuple(f"{name}.jpg" for name in scenes())
    return coco(*objects, size=(64, 64), names=names, classes=KINDS.things)


def test_coco_with_label_pngs_is_exact(tmp_path):
    """Objects and crowds are in COCO's published form, written by pycocotools."""
    source = tmp_path / "instances.json"
    source.write_text(json.dumps(coco_instances()))
    found = above_stuff(tmp_path, "coco", source, SCENES / "images")
    truth = scenes()
    assert found.keys() == truth.keys()
    assert sum(r.is_crowd for regions in truth.values() for r in regions) == 2
    for name, regions in truth.items():
        assert as_set(found[name]) == as_set(regions)


def test_datumaros_coco_is_exact_except_for_crowds(tmp_path):
    """Datumaro marks every mask as a crowd."""
    source = FIXTURES / "coco/annotations/instances_train.json"
    with pytest.raises(ValueError, match="15 of 15 objects are marked .* --crowds objects if"):
        above_stuff(tmp_path, "coco", source, SCENES / "images")
    assert not (tmp_path / "scenes").exists()
    found = above_stuff(tmp_path, "coco", source, SCENES / "images", crowds="objects")
    for name, regions in scenes().items():
        assert as_set(found[name], crowds=False) == as_set(regions, crowds=False)
        assert not any(region.is_crowd for region in found[name])


def test_a_class_of_only_crowds_is_refused(tmp_path):
    """The file is refused although no single image looks wrong."""
    path = tmp_path / "one.json"
    content = json.loads((FIXTURES / "coco/annotations/instances_train.json").read_text())
    first = {(a["image_id"], a["category_id"]): a for a in content["annotations"][::-1]}
    path.write_text(json.dumps(content | {"annotations": list(first.values())}))
    source = AnnotationSource(path, SCENES / "images")
    with pytest.raises(ValueError, match="9 of 9 objects are marked as crowds.*: ball, "):
        run_import(tmp_path, source, ImportPlan("coco"))
    found = run_import(tmp_path, source, ImportPlan("coco", crowds="groups"))
    assert all(region.is_crowd for regions in found.values() for region in regions)


def test_supervisely_polygons_equal_superviselys_drawing(tmp_path):
    plan = ImportPlan("supervisely", kinds=KINDS)
    found = run_import(tmp_path, AnnotationSource(FIXTURES / "supervisely/polygons"), plan)
    (name,) = found
    file = FIXTURES / f"supervisely/polygons/ann/{name}.jpg.json"
    figures = json.loads(file.read_text())["objects"]
    assert {figure["geometryType"] for figure in figures} == {"polygon", "bitmap"}
    drawn = np.asarray(Image.open(FIXTURES / f"supervisely_drawn/{name}.png"))
    expected = [
        Region(figure["classTitle"], figure["classTitle"] in KINDS.things, False, drawn == place)
        for place, figure in enumerate(figures, 1)
    ]
    assert as_set(found[name]) == as_set(expected)


def test_polygons_through_centres_are_exact(tmp_path):
    """
    Supervision draws polygons through the centres of border pixels.

    COCO's library takes them for lines between pixels, so objects lose half a pixel all around.
    """
    source = AnnotationSource(FIXTURES / "coco_polygons/annotations.json", SCENES / "images")
    edges = run_import(tmp_path, source, ImportPlan("coco"))
    centres = run_import(tmp_path, source, ImportPlan("coco", polygons="centres"), "centres")
    assert len(centres) == 2
    for name, regions in centres.items():
        truth = [r for r in scenes()[name] if r.is_thing and not r.is_crowd]
        assert as_set(regions) == as_set(truth)
        assert all(0.7 < iou(a.pixels, b.pixels) < 0.86 for a, b in zip(edges[name], regions))


CITYSCAPES_NAME = {
    **{"ball": "person", "crate": "car", "tent": "bus", "starfish": "bicycle"},
    **{"sky": "sky", "forest": "vegetation", "water": "road", "sand": "terrain"},
    "grass": "sidewalk",
}


@pytest.fixture
def cityscapes(tmp_path) -> Path:
    """Return the scenes as Cityscapes' JSON, and the PNGs that cityscapesscripts makes from it."""

    annotation = pytest.importorskip("cityscapesscripts.helpers.annotation")
    to_png = pytest.importorskip("cityscapesscripts.preparation.json2instanceImg")
    root = tmp_path / "cityscapes"
    for folder in ("gtFine/train/aachen", "leftImg8bit/train/aachen"):
        (root / folder).mkdir(parents=True)
    for name, regions in scenes().items():
        content = annotation.Annotation()
        content.imgHeight = content.imgWidth = 64
        for place, region in enumerate(regions):
            label = CITYSCAPES_NAME[region.label] + ("group" if region.is_crowd else "")
            contours, _ = cv2.findContours(
                region.pixels.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
            )
            for contour in (c for c in contours if len(c) > 2):
                entry = annotation.CsPoly()
                entry.label = label
                entry.polygon = [annotation.Point(int(x), int(y)) for x, y in contour[:, 0]]
                entry.deleted = int(place == 3)
                content.objects.append(entry)
        file = root / f"gtFine/train/aachen/{name}_gtFine_polygons.json"
        content.toJsonFile(str(file))
        # json2instanceImg would save 32 bits, which Pillow 13 refuses.
        numbers = np.asarray(to_png.createInstanceImage(content, "ids")).astype(np.uint16)
        Image.fromarray(numbers).save(str(file).replace("polygons.json", "instanceIds.png"))
        image = Image.open(SCENES / f"images/{name}.jpg")
        image.save(root / f"leftImg8bit/train/aachen/{name}_leftImg8bit.png")
    return root


def test_cityscapes_pngs_and_polygons_equal_cityscapesscripts(cityscapes, tmp_path):
    tool = pytest.importorskip("cityscapesscripts.preparation.createPanopticImgs")
    tool.convert2panoptic(str(cityscapes / "gtFine"), str(tmp_path), setNames=["train"])
    expected = json.loads((tmp_path / "cityscapes_panoptic_train.json").read_text())
    names = {c["id"]: (c["name"], bool(c["isthing"])) for c in expected["categories"]}
    source = AnnotationSource(cityscapes / "gtFine/train", cityscapes / "leftImg8bit/train")
    found = run_import(tmp_path, source, ImportPlan("cityscapes"), "pngs")
    polygons = run_import(tmp_path, source, ImportPlan("cityscapes-polygons"), "polygons")
    assert len(expected["annotations"]) == len(found) == len(polygons) == 3
    for entry in expected["annotations"]:
        ids = read_panoptic_png(tmp_path / "cityscapes_panoptic_train" / entry["file_name"])
        regions = [
            Region(*names[s["category_id"]], bool(s["iscrowd"]), ids == s["id"])
            for s in entry["segments_info"]
        ]
        stem = entry["file_name"].replace("_gtFine_panoptic.png", "_leftImg8bit")
        assert as_set(found[stem]) == as_set(polygons[stem]) == as_set(regions)
    assert any(r.is_crowd for regions in found.values() for r in regions)


def test_the_semantic_data_set_has_the_same_classes(tmp_path):
    plan = ImportPlan("voc", kinds=KINDS, semantic=True)
    source = AnnotationSource(FIXTURES / "voc", SCENES / "images")
    import_annotations("town", {"train": source}, plan, tmp_path / "town", workers=1)
    classes = read_data_file(tmp_path / "town/town.yaml").classes["classes"]
    assert [c["name"] for c in classes] == [*KINDS.things, *KINDS.stuff]
    for name, regions in scenes().items():
        labels = read_label_image(tmp_path / f"town/raw/train/semantic/{name}.png")
        expected = np.full(labels.shape, 255)
        for region in regions:
            expected[region.pixels] = [*KINDS.things, *KINDS.stuff].index(region.label)
        assert np.array_equal(labels, expected)


@pytest.mark.parametrize(
    "format, source, images",
    [
        ("cvat", EXPORTS / "cvat.xml", IMAGES),
        ("labelme", EXPORTS / "labelme", IMAGES),
        ("label-studio", EXPORTS / "label_studio.json", IMAGES),
        ("supervisely", FIXTURES / "supervisely/bitmaps", None),
        ("voc", FIXTURES / "voc", SCENES / "images"),
    ],
)
def test_masks_are_exact(tmp_path, format, source, images):
    """Crowds are an exception, because these tools do not have them."""
    found = run_import(tmp_path, AnnotationSource(source, images), ImportPlan(format, KINDS))
    truth = scenes()
    if EXPORTS in source.parents:
        truth = read_maps(EXPORTS / "panoptic.json", EXPORTS / "panoptic")
    assert found.keys() == truth.keys()
    for name, regions in truth.items():
        assert as_set(found[name], crowds=False) == as_set(regions, crowds=False)


def test_polygons_of_yolo_are_exact(tmp_path):
    found = above_stuff(tmp_path, "yolo-seg", FIXTURES / "yolo/data.yaml", None)
    for name, regions in scenes().items():
        assert as_set(found[name]) == as_set([r for r in regions if not r.is_crowd])
